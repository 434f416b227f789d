package queue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// predate makes events due before all others, as if their transaction had taken longer.
const predate = "UPDATE testing.events SET next_attempt_at = next_attempt_at - interval '1 h' WHERE (payload->>'n')::int >= $1"

// A dispatcher with a backlog continues to claim from its latest position. Events that committed late must not wait for
// the end of the backlog, even if there are more of them than one claim takes.
func TestLateEventsAreFoundInABacklog(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const backlog, late = 6000, 100
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("late")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(backlog)...)
	var handled, latecomers, found atomic.Int64
	under, committed := make(chan struct{}), make(chan struct{})
	cfg := runtimetest.QuickConfig()
	cfg.BatchSize, cfg.Concurrency = 10, 2
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		n := handled.Add(1)
		if n == 100 {
			close(under)
		}
		if n >= 100 {
			<-committed
		}
		if d.Payload.N >= backlog && latecomers.Add(1) == late {
			found.Store(n)
		}
		return nil
	})))
	pgtest.Receive(t, under, "the backlog to be under way")
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := topic.EnqueueMany(t.Context(), tx, runtimetest.NumberedJobs(backlog + late)[backlog:])
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), predate, backlog)
		require.NoError(t, err)
	})
	close(committed)
	pgtest.Settles(t, pool, backlog+late, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	require.Positive(t, found.Load())
	require.Less(t, found.Load(), int64(backlog*3/4), "it waited for the end of the backlog")
}

// At the end of a backlog the dispatcher checks for events that committed late before it goes idle.
func TestLateEventIsFoundAfterABacklog(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("later")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
	started, release := make(chan int64, 3), make(chan struct{})
	// It polls once in the whole test.
	cfg := queue.Config{
		Wake: outbox.WakePoll, LeaseDuration: time.Hour, PollInterval: 20 * time.Minute,
		BatchSize: 2, Concurrency: 2, Logger: runtimetest.DiscardLogger(),
	}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		started <- d.Payload.N
		<-release
		return nil
	})))
	for range 2 {
		pgtest.Receive(t, started, "the first two")
	}
	late := runtimetest.Job{TenantID: runtimetest.NumberedJobs(1)[0].TenantID, N: 2}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := topic.Enqueue(t.Context(), tx, late)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), predate, 2)
		require.NoError(t, err)
	})
	close(release)
	require.Equal(t, int64(2), pgtest.Receive(t, started, "the late one"))
	pgtest.Settles(t, pool, 3, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
}
