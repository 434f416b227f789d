package outboxfake_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/operation"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxfake"
)

func begin(t *testing.T, fake *outboxfake.DB) pgx.Tx {
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
		return outbox.Keys{Dedupe: eventkey.NewKey(eventkey.StringPart("id", p.(*fakeNote).ID))}
	},
})

// TestFakeRecordsImmediatelyWithoutATransaction: with nil, or with a transaction that is not of this Fake.
func TestFakeRecordsImmediatelyWithoutATransaction(t *testing.T) {
	t.Parallel()
	var fake, other outboxfake.DB
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
		var fake outboxfake.DB
		tx := begin(t, &fake)
		first, err := fakeNotes.Enqueue(t.Context(), tx, fakeNote{ID: "a"})
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
	var fake outboxfake.DB
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
				_ = outboxfake.Payloads(&fake, fakeNotes)
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
	var fake outboxfake.DB
	headers := map[string]string{"a": "b"}
	later := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	tags := []string{"x"}
	r, err := fake.Enqueue(t.Context(), nil, fakeNotes.Untyped(), fakeNote{ID: "1", Tags: tags}, outbox.WithHeaders(headers), outbox.WithNotBefore(later))
	require.NoError(t, err)
	_, err = fake.Enqueue(t.Context(), nil, fakeNotes.Untyped(), fakeNote{ID: "2"})
	require.NoError(t, err)
	headers["a"], tags[0] = "changed", "changed"
	fake.Events()[0].Headers["a"] = "changed"

	events := outboxfake.Events(&fake, fakeNotes)
	require.Len(t, events, 2)
	e := events[0]
	require.WithinDuration(t, time.Now(), e.CreatedAt, time.Hour)
	e.CreatedAt = time.Time{}
	require.Equal(t, outboxfake.Event[fakeNote]{
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
	require.Empty(t, outboxfake.Events(&fake, other))
}

// TestFakeTransactionRunsNoSQL: each statement is an error that says what to use.
func TestFakeTransactionRunsNoSQL(t *testing.T) {
	t.Parallel()
	var fake outboxfake.DB
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
		var fake outboxfake.DB
		err := operation.Run(t.Context(), &fake, "finish", func(ctx context.Context, o *operation.Operation) (operation.Outcome, error) {
			_, err := fake.Enqueue(ctx, o.Tx(), fakeNotes.Untyped(), fakeNote{ID: "through the fake"})
			require.NoError(t, err)
			err = pgx.BeginFunc(ctx, o.Tx(), func(tx pgx.Tx) error {
				_, err := fakeNotes.Enqueue(ctx, tx, fakeNote{ID: "in a savepoint"})
				return err
			})
			require.NoError(t, err)
			_, err = fakeNotes.EnqueueMany(ctx, o.Tx(), []fakeNote{{ID: "with the function"}})
			require.NoError(t, err)
			require.Empty(t, fake.Events(), "recorded before the commit")
			if fails {
				return operation.Outcome{}, nil
			}
			return o.Emit(ctx, "settled", nil, operation.Emission{Topic: fakeNotes.Untyped(), Payload: &fakeNote{ID: "outcome"}})
		})
		if fails {
			require.ErrorIs(t, err, operation.ErrNoOutcome)
			require.Empty(t, fake.Events())
			continue
		}
		require.NoError(t, err)
		require.Len(t, fake.Events(), 4)
	}
}
