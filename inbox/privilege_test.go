package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
)

// TestInboxPrivileges: the role dispatcher of `outboxgen migrate get --roles` suffices for everything that an inbox does.
func TestInboxPrivileges(t *testing.T) {
	t.Parallel()
	pool := pgtest.Plain(t)
	consumer := runtimetest.RolePools(t, pool)[migrate.Dispatcher]
	in, err := inbox.New(inbox.Config{Group: "cards", Stale: inbox.Quarantine, ReplayWindow: time.Nanosecond, Retention: time.Nanosecond, QuarantineRetention: time.Nanosecond})
	require.NoError(t, err)
	done := func(context.Context) error { return nil }
	commit := func(call func(tx pgx.Tx) error) {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), consumer, call))
	}
	for _, version := range []int64{2, 1} { // the second is quarantined
		commit(func(tx pgx.Tx) error {
			_, err := in.Apply(t.Context(), tx, inbox.Event{ID: uuid.New(), EntityType: "user", EntityID: "7", Version: version, Payload: []byte("{}")}, done)
			return err
		})
	}
	commit(func(tx pgx.Tx) error {
		_, err := in.OnceMany(t.Context(), tx, []uuid.UUID{uuid.New()}, func(context.Context, []int) error { return nil })
		return err
	})
	n, err := in.Prune(t.Context(), consumer)
	require.NoError(t, err)
	require.Positive(t, n)
	commit(func(tx pgx.Tx) error { return in.Reset(t.Context(), tx) })
}
