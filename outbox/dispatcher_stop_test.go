package outbox_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestStopWithHundredInFlight ends Run at random moments of a backlog: what was started is acked, what was
// not is handed back with its attempt, and nothing is handled twice.
func TestStopWithHundredInFlight(t *testing.T) {
	t.Parallel()
	times := rounds(40)
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	var mu sync.Mutex
	handled := make(map[uuid.UUID]int)
	enqueued := 0
	for range times {
		enqueueJobs(t, pool, topic, numbered(120)...)
		enqueued += 120
		ctx, cancel := context.WithCancel(t.Context())
		var seen atomic.Int64
		stopAt := rand.Int64N(130) // now and then only after the last
		cfg := quick()
		cfg.Concurrency, cfg.BatchSize = 1+rand.IntN(50), 100
		d := dispatcher(t, pool, cfg, onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
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
			watch := outbox.Watch(d)
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
		require.Len(t, handled, count(t, pool, delivered+" AND attempts = 1"))
		require.Equal(t, enqueued-len(handled), count(t, pool, "SELECT count(*) FROM outbox.events WHERE status = 'pending' AND attempts = 0 AND locked_until IS NULL"))
	}
	report, err := dispatcher(t, pool, quick(), onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
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
	require.Equal(t, enqueued, count(t, pool, delivered+" AND attempts = 1"))
}

func TestStopWaitsForHandlers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	cfg := quick()
	cfg.Concurrency = 2
	started, open := make(chan struct{}, 10), make(chan struct{})
	var cancelled atomic.Bool
	d := dispatcher(t, pool, cfg, onJob(topic, func(ctx context.Context, _ outbox.Delivery[job]) error {
		started <- struct{}{}
		<-open
		cancelled.Store(cancelled.Load() || ctx.Err() != nil)
		return nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	enqueueJobs(t, pool, topic, numbered(10)...)
	go func() { ended <- d.Run(ctx) }()
	receive(t, started, "a handler")
	receive(t, started, "a handler")
	cancel()
	settles(t, pool, 8, "SELECT count(*) FROM outbox.events WHERE status = 'pending' AND attempts = 0") // handed back at once
	close(open)
	require.NoError(t, receive(t, ended, "the end of Run"))
	require.False(t, cancelled.Load(), "handlers may finish")
	require.Equal(t, 2, count(t, pool, delivered+" AND attempts = 1"))
	require.Empty(t, started)
}

func TestShutdownTimeoutCancelsHandlers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := slowRetry()
	cfg := quick()
	cfg.ShutdownTimeout = 50 * time.Millisecond
	started := make(chan struct{})
	d := dispatcher(t, pool, cfg, onJob(topic, func(ctx context.Context, _ outbox.Delivery[job]) error {
		close(started)
		<-ctx.Done()
		return context.Cause(ctx)
	}))
	stop := start(t, d)
	id := enqueueJobs(t, pool, topic, numbered(1)...)[0]
	receive(t, started, "the handler")
	require.NoError(t, stop(), "a handler that heeds its context is settled")
	r := stateOf(t, pool, id)
	require.Equal(t, "pending", r.Status)
	require.Equal(t, "dispatcher is stopping: ShutdownTimeout has passed", r.LastError)
}

func TestShutdownNamesWhatStillRuns(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	cfg := quick()
	cfg.ShutdownTimeout, cfg.Concurrency = 50*time.Millisecond, 2
	started, open, cancelled, gone := make(chan int64, 2), make(chan struct{}), make(chan struct{}), make(chan struct{})
	d := dispatcher(t, pool, cfg, onJob(topic, func(ctx context.Context, d outbox.Delivery[job]) error {
		started <- d.Payload.N
		<-ctx.Done()
		if d.Payload.N == 0 {
			return nil // done all the same
		}
		close(cancelled)
		<-open
		close(gone)
		return nil
	}))
	stop := start(t, d)
	ids := enqueueJobs(t, pool, topic, numbered(2)...)
	receive(t, started, "a handler")
	receive(t, started, "a handler")
	require.EqualError(t, stop(), "stop dispatcher: still running after 50ms: jobs/one "+ids[1].String())
	receive(t, cancelled, "the cancelled context")
	require.Equal(t, "delivered", stateOf(t, pool, ids[0]).Status, "what was done is acked")
	require.Equal(t, "processing", stateOf(t, pool, ids[1]).Status, "left to its lease")
	close(open)
	receive(t, gone, "the end of the handler") // before the leak check
}

// TestStopWithoutDatabase: Run comes back although nothing can be settled any more.
func TestStopWithoutDatabase(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	topic := jobTopic("one")
	proxy := newProxy(t, database)
	cfg := quick()
	cfg.ShutdownTimeout, cfg.LeaseDuration = 100*time.Millisecond, longLease
	started, open := make(chan struct{}), make(chan struct{})
	d := dispatcher(t, proxy.pool(t), cfg, onJob(topic, func(context.Context, outbox.Delivery[job]) error {
		close(started)
		<-open
		return nil
	}))
	stop := start(t, d)
	id := enqueueJobs(t, database, topic, numbered(1)...)[0]
	receive(t, started, "the handler")
	proxy.swallow()
	close(open)
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	err := receive(t, ended, "the end of Run, long before that of the lease")
	require.ErrorContains(t, err, "stop dispatcher: 1 events could not be settled: ack: ")
	require.Equal(t, "processing", stateOf(t, database, id).Status)
}

// TestStoppedDispatcherLeaksNothing: connections and goroutines are as before after a run (invariant I11).
func TestStoppedDispatcherLeaksNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	backends := func() int {
		return count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	}
	other := anotherPool(t, pool)
	before := backends()
	for range 3 {
		d := dispatcher(t, other, quick(), onJob(topic, succeed))
		watch := outbox.Watch(d)
		stop := start(t, d)
		enqueueJobs(t, pool, topic, numbered(10)...)
		receive(t, watch.Idle, "idleness")
		require.NoError(t, stop())
		require.Zero(t, other.Stat().AcquiredConns())
	}
	other.Reset()
	other.Close()
	eventually(t, func() bool { return backends() <= before+1 })
	require.Zero(t, count(t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"))
}
