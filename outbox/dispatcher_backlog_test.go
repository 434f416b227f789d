package outbox_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// predate makes events due before all others, as if their transaction had been longer.
const predate = "UPDATE outbox.events SET next_attempt_at = next_attempt_at - interval '1 h' WHERE (payload->>'n')::int >= $1"

// A dispatcher with a backlog claims on from where it was, but events that came late must not wait for its end, also if
// they are more than one look finds.
func TestLateEventsAreFoundInABacklog(t *testing.T) {
	t.Parallel()
	const backlog, late = 6000, 100
	pool := pgtest.Database(t)
	topic := jobTopic("late")
	enqueueJobs(t, pool, topic, numbered(backlog)...)
	var handled, latecomers, found atomic.Int64
	under, committed := make(chan struct{}), make(chan struct{})
	cfg := quick()
	cfg.BatchSize, cfg.Concurrency = 10, 2
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
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
	receive(t, under, "the backlog to be under way")
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := topic.Untyped().EnqueueMany(t.Context(), tx, numbered(backlog + late)[backlog:])
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), predate, backlog)
		require.NoError(t, err)
	})
	close(committed)
	settles(t, pool, backlog+late, delivered)
	require.NoError(t, stop())
	require.Positive(t, found.Load())
	require.Less(t, found.Load(), int64(backlog*3/4), "it waited for the end of the backlog")
}

// The end of a backlog is not the end of the work: before the dispatcher rests it looks at what came late.
func TestLateEventIsFoundAfterABacklog(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("later")
	enqueueJobs(t, pool, topic, numbered(2)...)
	started, release := make(chan int64, 3), make(chan struct{})
	// It polls, once in the whole test.
	cfg := outbox.DispatcherConfig{
		Wake: outbox.WakePoll, LeaseDuration: time.Hour, PollInterval: 20 * time.Minute,
		BatchSize: 2, Concurrency: 2, Logger: quiet(),
	}
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		started <- d.Payload.N
		<-release
		return nil
	})))
	for range 2 {
		receive(t, started, "the first two")
	}
	late := job{TenantID: numbered(1)[0].TenantID, N: 2}
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := topic.Untyped().Enqueue(t.Context(), tx, late)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), predate, 2)
		require.NoError(t, err)
	})
	close(release)
	require.Equal(t, int64(2), receive(t, started, "the late one"))
	settles(t, pool, 3, delivered)
	require.NoError(t, stop())
}
