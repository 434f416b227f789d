package listener_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestListenerHandlesWhatWasEnqueuedInOrder(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{BatchSize: 2}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2", "c1", "a3")
	require.Equal(t, listener.Report{Delivered: 5}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"a1", "b1", "a2", "c1", "a3"}, h.Names())
	require.Equal(t, listener.Report{}, runtimetest.DrainAll(t, l))
	runtimetest.PutAll(t, pool, "a4")
	require.Equal(t, listener.Report{Delivered: 1}, runtimetest.DrainAll(t, l))
}

func TestListenerGetsWhatCommitsBehindItsCursor(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	late := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := runtimetest.SaidTopic.Enqueue(t.Context(), late, runtimetest.Said{Key: "late", N: 1})
	require.NoError(t, err)
	runtimetest.PutAll(t, pool, "a1", "b1")
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "b1"}, h.Names())
	runtimetest.PutAll(t, pool, "a2")
	runtimetest.DrainAll(t, l)
	require.NoError(t, late.Commit(t.Context()))
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"a1", "b1", "a2", "late1"}, h.Names())
}

func TestListenerBlocksBehindAFailure(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	var attempts []int
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		if d.Payload.Key == "b" {
			attempts = append(attempts, d.Attempt)
			return runtimetest.ErrHandler
		}
		return nil
	}
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: outbox.Retry{MaxAttempts: 3}}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2")
	require.Equal(t, listener.Report{Delivered: 1, Retried: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, listener.Report{}, runtimetest.DrainAll(t, l), "before the backoff is over")
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Retried: 1}, runtimetest.DrainAll(t, l))
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Dead: 1, Delivered: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"a1", "a2"}, h.Names())
	require.Equal(t, []int{1, 2, 3}, attempts)
	require.Equal(t, "b handler failed 3", pgtest.Value[string](t, pool, "SELECT payload->>'key' || ' ' || error || ' ' || attempts FROM outbox.dead_letters"))
}

func TestListenerParksAFailingKey(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	failing := true
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		if d.Payload.Key == "b" && d.Payload.N == 1 && failing {
			return runtimetest.ErrHandler
		}
		return nil
	}
	l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2", "b2")
	require.Equal(t, listener.Report{Delivered: 2, Retried: 1}, runtimetest.DrainAll(t, l))
	runtimetest.PutAll(t, pool, "b3", "a3")
	require.Equal(t, listener.Report{Delivered: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"a1", "a2", "a3"}, h.Names())
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Retried: 1}, runtimetest.DrainAll(t, l))
	failing = false
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Delivered: 3}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"a1", "a2", "a3", "b1", "b2", "b3"}, h.Names())
	runtimetest.PutAll(t, pool, "b4")
	require.Equal(t, listener.Report{Delivered: 1}, runtimetest.DrainAll(t, l))
	require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
}

func TestListenerInTransactionUndoesAFailure(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		if d.Payload.Key == "b" && d.Attempt < 2 {
			return runtimetest.ErrHandler
		}
		return nil
	}
	l := runtimetest.ListenTx(t, pool, listener.Spec{}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2")
	require.Equal(t, listener.Report{Delivered: 1, Retried: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects"))
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, l))
	require.Equal(t, "a1 b1 a2", pgtest.Value[string](t, pool, "SELECT string_agg(key || n, ' ' ORDER BY no) FROM effects"))
}

func TestListenerRunsAndWakes(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{Shards: 4, Concurrency: 3}, listener.Config{}, h)
	stop := runtimetest.StartListener(t, l)
	for i := range 50 {
		runtimetest.PutAll(t, pool, "a1", "b1", "c1", "d1")
		h.Await(t, 4*(i+1))
	}
	stop()
	require.Len(t, h.Names(), 200)
}
