package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestListenerHandlesWhatWasEnqueuedInOrder(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	l := listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{BatchSize: 2}, h)
	putAll(t, pool, "a1", "b1", "a2", "c1", "a3")
	require.Equal(t, outbox.DrainReport{Delivered: 5}, drainAll(t, l))
	require.Equal(t, []string{"a1", "b1", "a2", "c1", "a3"}, h.names())
	require.Equal(t, outbox.DrainReport{}, drainAll(t, l))
	putAll(t, pool, "a4")
	require.Equal(t, outbox.DrainReport{Delivered: 1}, drainAll(t, l))
}

func TestListenerGetsWhatCommitsBehindItsCursor(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	l := listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{}, h)
	late := begin(t, pool, pgx.TxOptions{})
	_, err := saidTopic.Untyped().Enqueue(t.Context(), late, said{Key: "late", N: 1})
	require.NoError(t, err)
	putAll(t, pool, "a1", "b1")
	drainAll(t, l)
	require.Equal(t, []string{"a1", "b1"}, h.names())
	putAll(t, pool, "a2")
	drainAll(t, l)
	require.NoError(t, late.Commit(t.Context()))
	drainAll(t, l)
	require.Equal(t, []string{"a1", "b1", "a2", "late1"}, h.names())
}

func TestListenerBlocksBehindAFailure(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	var attempts []int
	h.fail = func(d outbox.Delivery[said]) error {
		if d.Payload.Key == "b" {
			attempts = append(attempts, d.Attempt)
			return errHandler
		}
		return nil
	}
	l := listenTo(t, pool, outbox.ListenerSpec{Retry: outbox.Retry{MaxAttempts: 3}}, outbox.ListenerConfig{}, h)
	putAll(t, pool, "a1", "b1", "a2")
	require.Equal(t, outbox.DrainReport{Delivered: 1, Retried: 1}, drainAll(t, l))
	require.Equal(t, outbox.DrainReport{}, drainAll(t, l), "before the back-off is over")
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Retried: 1}, drainAll(t, l))
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Dead: 1, Delivered: 1}, drainAll(t, l))
	require.Equal(t, []string{"a1", "a2"}, h.names())
	require.Equal(t, []int{1, 2, 3}, attempts)
	require.Equal(t, "b handler failed 3", value[string](t, pool, "SELECT payload->>'key' || ' ' || error || ' ' || attempts FROM outbox.dead_letters"))
}

func TestListenerParksAFailingKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	failing := true
	h.fail = func(d outbox.Delivery[said]) error {
		if d.Payload.Key == "b" && d.Payload.N == 1 && failing {
			return errHandler
		}
		return nil
	}
	l := listenTo(t, pool, outbox.ListenerSpec{ParkKeys: true}, outbox.ListenerConfig{}, h)
	putAll(t, pool, "a1", "b1", "a2", "b2")
	require.Equal(t, outbox.DrainReport{Delivered: 2, Retried: 1}, drainAll(t, l))
	putAll(t, pool, "b3", "a3")
	require.Equal(t, outbox.DrainReport{Delivered: 1}, drainAll(t, l))
	require.Equal(t, []string{"a1", "a2", "a3"}, h.names())
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Retried: 1}, drainAll(t, l))
	failing = false
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Delivered: 3}, drainAll(t, l))
	require.Equal(t, []string{"a1", "a2", "a3", "b1", "b2", "b3"}, h.names())
	putAll(t, pool, "b4")
	require.Equal(t, outbox.DrainReport{Delivered: 1}, drainAll(t, l))
	require.Zero(t, value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
}

func TestListenerInTransactionUndoesAFailure(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.fail = func(d outbox.Delivery[said]) error {
		if d.Payload.Key == "b" && d.Attempt < 2 {
			return errHandler
		}
		return nil
	}
	l := listenTx(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{}, h)
	putAll(t, pool, "a1", "b1", "a2")
	require.Equal(t, outbox.DrainReport{Delivered: 1, Retried: 1}, drainAll(t, l))
	require.Equal(t, 1, value[int](t, pool, "SELECT count(*)::int FROM effects"))
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, l))
	require.Equal(t, "a1 b1 a2", value[string](t, pool, "SELECT string_agg(key || n, ' ' ORDER BY no) FROM effects"))
}

func TestListenerRunsAndWakes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	l := listenTo(t, pool, outbox.ListenerSpec{Shards: 4, Concurrency: 3}, outbox.ListenerConfig{}, h)
	stop := startListener(t, l)
	for i := range 50 {
		putAll(t, pool, "a1", "b1", "c1", "d1")
		h.await(t, 4*(i+1))
	}
	stop()
	require.Len(t, h.names(), 200)
}
