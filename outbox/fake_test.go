package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestFakeRefusesWhatIsRefusedBeforePostgreSQL: every message that an enqueue refuses is refused by a Fake too, with the
// same text.
func TestFakeRefusesWhatIsRefusedBeforePostgreSQL(t *testing.T) {
	t.Parallel()
	var fake outbox.Fake
	faked := begin(t, &fake)
	pgtest.InTx(t, pgtest.Database(t), func(tx pgx.Tx) {
		for name, bad := range badMessages() {
			m := runtimetest.Message(runtimetest.TenantA, 1)
			bad.change(&m)
			_, want := outbox.Enqueue(t.Context(), tx, "", m)
			_, have := outbox.Enqueue(t.Context(), faked, "", m)
			require.EqualError(t, have, want.Error(), name)
			if bad.want != nil {
				require.ErrorIs(t, have, bad.want, name)
			}
			ms := []outbox.Message{runtimetest.Message(runtimetest.TenantA, 2), m}
			_, want = outbox.EnqueueMany(t.Context(), tx, "", ms)
			_, have = outbox.EnqueueMany(t.Context(), faked, "", ms)
			require.EqualError(t, have, want.Error(), name)
		}
		for _, schema := range []string{"Outbox", "select"} {
			_, want := outbox.Enqueue(t.Context(), tx, schema, runtimetest.Message(runtimetest.TenantA, 1))
			_, have := outbox.Enqueue(t.Context(), faked, schema, runtimetest.Message(runtimetest.TenantA, 1))
			require.EqualError(t, have, want.Error())
		}
		//lint:ignore SA1012 it is what the test is about
		_, want := outbox.Enqueue(nil, tx, "", runtimetest.Message(runtimetest.TenantA, 1)) //nolint:staticcheck
		//lint:ignore SA1012 it is what the test is about
		_, have := outbox.Enqueue(nil, faked, "", runtimetest.Message(runtimetest.TenantA, 1)) //nolint:staticcheck
		require.EqualError(t, have, want.Error())
	})
	require.NoError(t, faked.Commit(t.Context()))
	require.Empty(t, fake.Events())
}

func begin(t *testing.T, fake *outbox.Fake) pgx.Tx {
	t.Helper()
	tx, err := fake.Begin(t.Context())
	require.NoError(t, err)
	return tx
}

type fakeNote struct {
	ID   string   `json:"id"`
	Tags []string `json:"tags"`
}

var fakeNotes = outbox.NewTopic[fakeNote](outbox.TopicSpec{
	Namespace: "testing", Name: "note",
	Keys: func(p any) outbox.Keys {
		return outbox.Keys{Dedupe: outbox.NewKey(outbox.StringPart("id", p.(*fakeNote).ID))}
	},
})

// TestFakeRecordsImmediatelyWithoutATransaction: with nil, or with a transaction that is not of this Fake.
func TestFakeRecordsImmediatelyWithoutATransaction(t *testing.T) {
	t.Parallel()
	var fake, other outbox.Fake
	for n, tx := range []pgx.Tx{nil, begin(t, &other)} {
		_, err := fake.Enqueue(t.Context(), tx, fakeNotes.Untyped(), fakeNote{ID: uuid.NewString()})
		require.NoError(t, err)
		require.Len(t, fake.Events(), n+1)
	}
	require.Empty(t, other.Events())
}

// asked is a context that says when somebody asks for its end.
type asked struct {
	context.Context
	forDone chan struct{}
}

func (a asked) Done() <-chan struct{} {
	select {
	case a.forDone <- struct{}{}:
	default:
	}
	return a.Context.Done()
}

// TestFakeWaitsForTheOwnerOfAKey: as in PostgreSQL, an enqueue waits for the end of the transaction that has its key. The
// commit of that makes it a duplicate, the rollback lets it in, and the end of its context ends the wait.
func TestFakeWaitsForTheOwnerOfAKey(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{true, false} {
		var fake outbox.Fake
		tx := begin(t, &fake)
		first, err := fakeNotes.Untyped().Enqueue(t.Context(), tx, fakeNote{ID: "a"})
		require.NoError(t, err)

		short, cancel := context.WithCancel(t.Context())
		waiting := asked{short, make(chan struct{}, 1)}
		cancelled := make(chan error, 1)
		go func() {
			_, err := fake.EnqueueMany(waiting, nil, fakeNotes.Untyped(), []fakeNote{{ID: "0"}, {ID: "a"}})
			cancelled <- err
		}()
		pgtest.Receive(t, waiting.forDone, "a wait")
		cancel()
		require.ErrorIs(t, pgtest.Receive(t, cancelled, "the end of the wait"), context.Canceled)

		second := make(chan outbox.Receipt, 1)
		waiting = asked{t.Context(), make(chan struct{}, 1)}
		go func() {
			r, err := fake.Enqueue(waiting, nil, fakeNotes.Untyped(), fakeNote{ID: "a"})
			if err == nil {
				second <- r
			}
		}()
		pgtest.Receive(t, waiting.forDone, "a wait")
		if commits {
			require.NoError(t, tx.Commit(t.Context()))
			require.Equal(t, outbox.Receipt{ID: first.ID, Duplicate: true}, pgtest.Receive(t, second, "the second receipt"))
		} else {
			require.NoError(t, tx.Rollback(t.Context()))
			require.False(t, pgtest.Receive(t, second, "the second receipt").Duplicate)
		}
		require.Len(t, fake.Events(), 1)
		r, err := fake.Enqueue(t.Context(), nil, fakeNotes.Untyped(), fakeNote{ID: "0"})
		require.NoError(t, err)
		require.False(t, r.Duplicate, "the call that was cancelled has kept a key")
	}
}

// TestFakeMayBeUsedConcurrently: of many that enqueue the same keys, one gets each.
func TestFakeMayBeUsedConcurrently(t *testing.T) {
	t.Parallel()
	var fake outbox.Fake
	const workers, keys = 8, 50
	done := make(chan int, workers)
	for range workers {
		go func() {
			written := 0
			for n := range keys {
				r, err := fake.Enqueue(context.Background(), nil, fakeNotes.Untyped(), fakeNote{ID: string(rune('a' + n))})
				if err == nil && !r.Duplicate {
					written++
				}
				_ = outbox.FakePayloads(&fake, fakeNotes)
			}
			done <- written
		}()
	}
	total := 0
	for range workers {
		total += pgtest.Receive(t, done, "a worker")
	}
	require.Equal(t, keys, total)
	require.Len(t, fake.Events(), keys)
}

// TestFakeEventIsWhatAHandlerGets: a delivery of the first attempt, with its payload decoded and headers that are its own.
func TestFakeEventIsWhatAHandlerGets(t *testing.T) {
	t.Parallel()
	var fake outbox.Fake
	headers := map[string]string{"a": "b"}
	later := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	tags := []string{"x"}
	r, err := fake.Enqueue(t.Context(), nil, fakeNotes.Untyped(), fakeNote{ID: "1", Tags: tags}, outbox.WithHeaders(headers), outbox.WithNotBefore(later))
	require.NoError(t, err)
	_, err = fake.Enqueue(t.Context(), nil, fakeNotes.Untyped(), fakeNote{ID: "2"})
	require.NoError(t, err)
	headers["a"], tags[0] = "changed", "changed"
	fake.Events()[0].Headers["a"] = "changed"

	events := outbox.FakeEvents(&fake, fakeNotes)
	require.Len(t, events, 2)
	e := events[0]
	require.WithinDuration(t, time.Now(), e.CreatedAt, time.Hour)
	e.CreatedAt = time.Time{}
	require.Equal(t, outbox.FakeEvent[fakeNote]{
		Delivery: outbox.Delivery[fakeNote]{
			Event: outbox.Event{
				ID: r.ID, Namespace: "testing", Topic: "note", Version: 1, DedupeKey: "1", Headers: map[string]string{"a": "b"},
				Attempt: 1, MaxAttempts: outbox.DefaultMaxAttempts,
			},
			Payload: fakeNote{ID: "1", Tags: []string{"x"}},
		},
		NotBefore: later,
	}, e)
	require.Equal(t, []string{}, events[1].Payload.Tags, "a required list is never null")
	require.Nil(t, events[1].Headers)
	other := outbox.NewTopic[fakeNote](outbox.TopicSpec{Namespace: "testing", Name: "note", Log: true})
	require.Empty(t, outbox.FakeEvents(&fake, other))
}

// TestFakeTransactionRunsNoSQL: each statement is an error that says what to use.
func TestFakeTransactionRunsNoSQL(t *testing.T) {
	t.Parallel()
	var fake outbox.Fake
	tx := begin(t, &fake)
	_, execErr := tx.Exec(t.Context(), "SELECT 1")
	_, queryErr := tx.Query(t.Context(), "SELECT 1")
	_, copyErr := tx.CopyFrom(t.Context(), nil, nil, nil)
	_, prepareErr := tx.Prepare(t.Context(), "a", "SELECT 1")
	results := tx.SendBatch(t.Context(), &pgx.Batch{})
	_, batchErr := results.Exec()
	for _, err := range []error{execErr, queryErr, copyErr, prepareErr, batchErr, results.Close(), results.QueryRow().Scan(), tx.QueryRow(t.Context(), "SELECT 1").Scan()} {
		require.ErrorContains(t, err, "runs no SQL")
	}
}

// TestOperationRunsWithAFake: a Fake is the Beginner of an operation. The events of its outcome, and those that are enqueued
// with its transaction or with a savepoint of that, are recorded when it commits.
func TestOperationRunsWithAFake(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		var fake outbox.Fake
		err := outbox.RunOperation(t.Context(), &fake, "finish", func(ctx context.Context, o *outbox.Operation) (outbox.OperationOutcome, error) {
			_, err := fake.Enqueue(ctx, o.Tx(), fakeNotes.Untyped(), fakeNote{ID: "through the fake"})
			require.NoError(t, err)
			err = pgx.BeginFunc(ctx, o.Tx(), func(tx pgx.Tx) error {
				_, err := fakeNotes.Untyped().Enqueue(ctx, tx, fakeNote{ID: "in a savepoint"})
				return err
			})
			require.NoError(t, err)
			_, err = fakeNotes.Untyped().EnqueueMany(ctx, o.Tx(), []fakeNote{{ID: "with the function"}})
			require.NoError(t, err)
			require.Empty(t, fake.Events(), "recorded before the commit")
			if fails {
				return outbox.OperationOutcome{}, nil
			}
			return o.Emit(ctx, "settled", nil, outbox.Emission{Topic: fakeNotes.Untyped(), Payload: &fakeNote{ID: "outcome"}})
		})
		if fails {
			require.ErrorIs(t, err, outbox.ErrNoOutcome)
			require.Empty(t, fake.Events())
			continue
		}
		require.NoError(t, err)
		require.Len(t, fake.Events(), 4)
	}
}
