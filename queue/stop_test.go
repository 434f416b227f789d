package queue_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestStopStartsNothingMore: when ctx has ended, no worker begins what waited for it, even before the loop has noticed.
func TestStopStartsNothingMore(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(40)...)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		cfg := runtimetest.QuickConfig()
		cfg.Concurrency = 1
		var began atomic.Int64
		d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
			began.Add(1)
			cancel()
			return nil
		}))
		require.NoError(t, d.Run(ctx))
		require.EqualValues(t, 1, began.Load())
	}
}

// TestStopWithHundredInFlight ends Run at random moments of a backlog: events that were started are acked, the others
// are released with their attempts uncounted, and nothing is handled twice.
func TestStopWithHundredInFlight(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	times := runtimetest.Rounds(40)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	var mu sync.Mutex
	handled := make(map[uuid.UUID]int)
	enqueued := 0
	for range times {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(120)...)
		enqueued += 120
		ctx, cancel := context.WithCancel(t.Context())
		var seen atomic.Int64
		stopAt := rand.Int64N(130) // sometimes only after the last event
		cfg := runtimetest.QuickConfig()
		cfg.Concurrency, cfg.BatchSize = 1+rand.IntN(50), 100
		d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
			if seen.Add(1) == stopAt {
				cancel()
			}
			if rand.IntN(4) == 0 {
				<-time.After(time.Duration(rand.Int64N(int64(3 * time.Millisecond))))
			}
			mu.Lock()
			defer mu.Unlock()
			handled[d.ID]++
			return nil
		}))
		if stopAt == 0 || stopAt > 100 {
			watch := queue.Watch(d)
			go func() {
				select {
				case <-watch.Idle:
				case <-ctx.Done():
				}
				cancel()
			}()
		}
		require.NoError(t, d.Run(ctx))
		cancel()
		require.Len(t, handled, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))
		require.Equal(t, enqueued-len(handled), pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE status = 'pending' AND attempts = 0 AND locked_until IS NULL"))
	}
	report, err := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		mu.Lock()
		defer mu.Unlock()
		handled[d.ID]++
		return nil
	})).Drain(t.Context())
	require.NoError(t, err)
	require.Zero(t, report.Retried+report.Dead+report.Lost)
	require.Len(t, handled, enqueued)
	for id, times := range handled {
		require.Equal(t, 1, times, "event %s", id)
	}
	require.Equal(t, enqueued, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))
}

func TestStopWaitsForHandlers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency = 2
	started, open := make(chan struct{}, 10), make(chan struct{})
	var cancelled atomic.Bool
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, _ outbox.Delivery[runtimetest.Job]) error {
		started <- struct{}{}
		<-open
		cancelled.Store(cancelled.Load() || ctx.Err() != nil)
		return nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(10)...)
	go func() { ended <- d.Run(ctx) }()
	pgtest.Receive(t, started, "a handler")
	pgtest.Receive(t, started, "a handler")
	cancel()
	pgtest.Settles(t, pool, 8, "SELECT count(*) FROM testing.events WHERE status = 'pending' AND attempts = 0") // handed back immediately
	close(open)
	require.NoError(t, pgtest.Receive(t, ended, "the end of Run"))
	require.False(t, cancelled.Load(), "handlers may finish")
	require.Equal(t, 2, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))
	require.Empty(t, started)
}

func TestShutdownTimeoutCancelsHandlers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := slowRetry()
	cfg := runtimetest.QuickConfig()
	cfg.ShutdownTimeout = 50 * time.Millisecond
	started := make(chan struct{})
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, _ outbox.Delivery[runtimetest.Job]) error {
		close(started)
		<-ctx.Done()
		return context.Cause(ctx)
	}))
	stop := runtimetest.StartDispatcher(t, d)
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	pgtest.Receive(t, started, "the handler")
	require.NoError(t, stop(), "a handler that obeys its context is settled")
	r := runtimetest.StateOf(t, pool, id)
	require.Equal(t, "pending", r.Status)
	require.Equal(t, "dispatcher is stopping: ShutdownTimeout has passed", r.LastError)
}

func TestShutdownNamesWhatStillRuns(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	cfg := runtimetest.QuickConfig()
	cfg.ShutdownTimeout, cfg.Concurrency = 50*time.Millisecond, 2
	started, open, cancelled, gone := make(chan int64, 2), make(chan struct{}), make(chan struct{}), make(chan struct{})
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
		started <- d.Payload.N
		<-ctx.Done()
		if d.Payload.N == 0 {
			return nil // it is done nevertheless
		}
		close(cancelled)
		<-open
		close(gone)
		return nil
	}))
	stop := runtimetest.StartDispatcher(t, d)
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
	pgtest.Receive(t, started, "a handler")
	pgtest.Receive(t, started, "a handler")
	require.EqualError(t, stop(), "stop dispatcher: still running after 50ms: jobs/one "+ids[1].String())
	pgtest.Receive(t, cancelled, "the cancelled context")
	require.Equal(t, "delivered", runtimetest.StateOf(t, pool, ids[0]).Status, "what was done is acked")
	require.Equal(t, "processing", runtimetest.StateOf(t, pool, ids[1]).Status, "left to its lease")
	close(open)
	pgtest.Receive(t, gone, "the end of the handler") // before the leak check
}

// TestStopWithoutDatabase: Run returns although nothing can be settled any more.
func TestStopWithoutDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	database := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	proxy := pgtest.NewProxy(t, database)
	cfg := runtimetest.QuickConfig()
	cfg.ShutdownTimeout, cfg.LeaseDuration = 100*time.Millisecond, runtimetest.LongLease
	started, open := make(chan struct{}), make(chan struct{})
	d := runtimetest.Dispatcher(t, proxy.Pool(t), cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		close(started)
		<-open
		return nil
	}))
	stop := runtimetest.StartDispatcher(t, d)
	id := runtimetest.EnqueueJobs(t, database, topic, runtimetest.NumberedJobs(1)...)[0]
	pgtest.Receive(t, started, "the handler")
	proxy.Swallow()
	close(open)
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	err := pgtest.Receive(t, ended, "the end of Run, long before that of the lease")
	require.ErrorContains(t, err, "stop dispatcher: 1 events could not be settled: ack: ")
	require.Equal(t, "processing", runtimetest.StateOf(t, database, id).Status)
}

// TestStoppedDispatcherLeaksNothing: connections and goroutines are as before after a run (invariant I11).
func TestStoppedDispatcherLeaksNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	backends := func() int {
		return pgtest.Count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	}
	other := pgtest.AnotherPool(t, pool)
	before := backends()
	for range 3 {
		d := runtimetest.Dispatcher(t, other, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed))
		watch := queue.Watch(d)
		stop := runtimetest.StartDispatcher(t, d)
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(10)...)
		pgtest.Receive(t, watch.Idle, "idleness")
		require.NoError(t, stop())
		pgtest.Idle(t, other)
	}
	other.Reset()
	other.Close()
	pgtest.Eventually(t, func() bool { return backends() <= before+1 })
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"))
}
