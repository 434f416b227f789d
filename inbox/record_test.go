package inbox_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestRecord: a batch of both kinds has the outcomes that its events would have one by one.
func TestRecord(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	in, err := inbox.New(inbox.Config{Group: "batch"})
	require.NoError(t, err)
	versioned := func(id string, version int64) inbox.Event {
		return inbox.Event{ID: uuid.New(), EntityType: "user", EntityID: id, Version: version}
	}
	plain := inbox.Event{ID: uuid.New()}
	first, second := versioned("a", 1), versioned("a", 2)
	late := versioned("b", 3)
	batch := []inbox.Event{second, plain, versioned("b", 4), first, plain, late, versioned("c", 1)}
	record := func(in *inbox.Inbox, batch ...inbox.Event) (outcomes []inbox.Outcome, err error) {
		err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			outcomes, err = in.Record(t.Context(), tx, batch)
			return err
		})
		return outcomes, err
	}
	outcomes, err := record(in, batch...)
	require.NoError(t, err)
	require.Equal(t, []inbox.Outcome{inbox.Applied, inbox.Applied, inbox.Applied, inbox.Skipped, inbox.Duplicate, inbox.Skipped, inbox.Applied}, outcomes)
	outcomes, err = record(in, batch...)
	require.NoError(t, err)
	for _, o := range outcomes {
		require.Equal(t, inbox.Duplicate, o)
	}
	outcomes, err = record(in)
	require.NoError(t, err)
	require.Empty(t, outcomes)

	for id, want := range map[string]int64{"a": 2, "b": 4, "c": 1, "d": 0} {
		last, err := in.LastVersion(t.Context(), begin(t, pool, ""), versioned(id, 9))
		require.NoError(t, err)
		require.Equal(t, want, last, id)
	}

	var one *inbox.RecordError
	_, err = record(in, inbox.Event{ID: uuid.New()}, inbox.Event{ID: uuid.New(), Version: 1})
	require.ErrorAs(t, err, &one)
	require.ErrorIs(t, err, inbox.ErrInvalidEvent)
	require.Equal(t, 1, one.Index)
	strict, err := inbox.New(inbox.Config{Group: "batch", Stale: inbox.Error})
	require.NoError(t, err)
	_, err = record(strict, versioned("d", 1), versioned("b", 2), versioned("a", 1))
	require.True(t, errors.As(err, &one))
	require.ErrorIs(t, err, inbox.ErrStale)
	require.Equal(t, 1, one.Index, "the first of the batch")
	_, err = in.Record(t.Context(), nil, batch)
	require.ErrorContains(t, err, "no transaction given")
}
