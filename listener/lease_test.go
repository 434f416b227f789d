package listener_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerHasOneHolderAtATime: one of several replicas at a time handles events, in order and each once, while
// replicas start and stop.
func TestListenerHasOneHolderAtATime(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		var busy runtimetest.Gauge
		h.Fail = func(outbox.Delivery[runtimetest.Said]) error {
			busy.Enter()
			defer busy.Leave()
			<-time.After(100 * time.Microsecond)
			return nil
		}
		replica := func() (stop func()) {
			cfg := listener.Config{PollInterval: 10 * time.Millisecond, BatchSize: 7}
			return runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, cfg, h))
		}
		c := runtimetest.NewCrowd("a", "b", "c")
		stops := []func(){replica(), replica()}
		for round := range 6 {
			c.Enqueue(t, pool, 40)
			h.Await(t, 40*round+20)
			stops = append(stops, replica())
			stops[0]() // in the middle of the remaining events
			stops = stops[1:]
		}
		h.Await(t, 240)
		for _, stop := range stops {
			stop()
		}
		require.Equal(t, 240, h.InOrder(t))
		require.EqualValues(t, 1, busy.Most.Load())
		if transactional {
			require.Equal(t, 240, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects"))
		}
	})
}

// TestListenerStopHandsOver: when Run's context ends, its handler may finish, and the result counts. Another process
// gets the rest of the batch immediately, although the lease is long and nobody polls, and no attempt is counted.
func TestListenerStopHandsOver(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		cfg := dozing()
		first, second := runtimetest.NewNotes(), runtimetest.NewNotes()
		first.Hold = make(chan struct{})
		ending, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, cfg, first)
		over := make(chan error, 1)
		go func() { over <- l.Run(ending) }()
		runtimetest.PutAll(t, pool, "a1", "b1", "a2")
		pgtest.Receive(t, first.Started, "the handler")
		runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, cfg, second))
		cancel()
		select {
		case err := <-over:
			require.FailNow(t, "Run did not wait for its handler", err)
		case <-time.After(50 * time.Millisecond):
		}
		require.Empty(t, second.Started, "still held")
		close(first.Hold)
		require.NoError(t, pgtest.Receive(t, over, "the end of Run"))
		begin := time.Now()
		second.Await(t, 2)
		require.Less(t, time.Since(begin), runtimetest.Promptly)
		require.Equal(t, []string{"a1"}, first.Names())
		require.Equal(t, []string{"b1", "a2"}, second.Names())
		require.Equal(t, []int{1, 1}, []int{second.Got[0].Attempt, second.Got[1].Attempt})
	})
}

// TestListenerShutdownTimeout: a handler that returns when its context is cancelled has failed, with the reason, and is
// settled. Run names a handler that does not. The results of the others are kept, and no other process gets its event
// while the lease lasts.
func TestListenerShutdownTimeout(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, transactional := range []bool{false, true} {
		for _, returns := range []bool{true, false} {
			t.Run(fmt.Sprintf("transactional %t, returns %t", transactional, returns), func(t *testing.T) {
				t.Parallel()
				testShutdownTimeout(t, transactional, returns)
			})
		}
	}
}

func testShutdownTimeout(t *testing.T, transactional, returns bool) {
	t.Helper()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	started, open, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		if d.Payload.Key != "x" {
			return nil
		}
		close(started)
		<-open
		close(gone)
		return nil
	}
	if returns {
		h.Hold = make(chan struct{}) // the handler waits until it is cancelled
	}
	cfg := listener.Config{ShutdownTimeout: 50 * time.Millisecond, LeaseDuration: time.Hour}
	if !transactional {
		cfg.Concurrency = 2
	}
	l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{Retry: runtimetest.LateRetry}, cfg, h)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	runtimetest.PutAll(t, pool, "a1", "x1")
	other := runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, listener.Config{}, runtimetest.NewNotes())
	if returns {
		pgtest.Receive(t, h.Started, "the handler")
		cancel()
		require.NoError(t, pgtest.Receive(t, over, "the end of Run"))
		require.Equal(t, "1 listener is stopping: ShutdownTimeout has passed",
			pgtest.Value[string](t, pool, "SELECT concat(retry_count, ' ', last_error) FROM outbox.listeners WHERE lease_by IS NULL"))
		runtimetest.RetryNow(t, pool)
		require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, other))
		return
	}
	pgtest.Receive(t, started, "the handler")
	h.Await(t, 1) // a1 is done
	cancel()
	require.EqualError(t, pgtest.Receive(t, over, "the end of Run"),
		"stop listener: still running after 50ms: test/said "+runtimetest.IDOf(t, pool, "x1").String())
	require.Equal(t, listener.Report{}, runtimetest.DrainAll(t, other), "left to its lease")
	close(open)
	pgtest.Receive(t, gone, "the end of the handler") // before the leak check
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET lease_until = now()")
	require.Equal(t, listener.Report{Delivered: map[bool]int{false: 1, true: 2}[transactional]}, runtimetest.DrainAll(t, other))
	if transactional {
		require.Equal(t, "a1 x1", effects(t, pool))
	}
}

// TestListenerStopsWithoutDatabase: Run returns although nothing can be settled any more.
func TestListenerStopsWithoutDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		proxy := pgtest.NewProxy(t, pool)
		h := runtimetest.NewNotes()
		h.Hold = make(chan struct{})
		runtimetest.MakeEffects(t, pool)
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, listener.Config{ShutdownTimeout: 50 * time.Millisecond, LeaseDuration: runtimetest.LongLease}, h)
		listener.ThroughPool(l, proxy.Pool(t))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		over := make(chan error, 1)
		go func() { over <- l.Run(ctx) }()
		runtimetest.PutAll(t, pool, "a1", "b1")
		pgtest.Receive(t, h.Started, "the handler")
		proxy.Swallow()
		close(h.Hold)
		h.Await(t, map[bool]int{false: 2, true: 1}[transactional]) // the next needs the database
		cancel()
		err := pgtest.Receive(t, over, "the end of Run, long before that of the lease")
		if !transactional { // otherwise there is nothing to settle
			require.ErrorContains(t, err, "stop listener: 2 events of shard 0 could not be settled: ")
		}
	})
}

// TestListenerLeavesNothingOpen: no transaction is open while a leased handler runs; in transactional mode one is.
// After Run no connection is in use, and no lease or lock is held.
func TestListenerLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		own := pgtest.AnotherPool(t, pool)
		h := runtimetest.NewNotes()
		h.Hold = make(chan struct{})
		l := runtimetest.ListenAs(t, own, transactional, listener.Spec{Shards: 2}, listener.Config{}, h)
		stop := runtimetest.StartListener(t, l)
		runtimetest.PutAll(t, pool, "a1", "a2")
		pgtest.Receive(t, h.Started, "the handler")
		const others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
		pgtest.Settles(t, pool, map[bool]int{false: 0, true: 1}[transactional], "SELECT count(*) "+others+" AND xact_start IS NOT NULL")
		close(h.Hold)
		h.Await(t, 2)
		stop()
		pgtest.Idle(t, own)
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE lease_by IS NOT NULL OR running"))
		require.Zero(t, runtimetest.Holder(t, pool))
		own.Reset()
		own.Close()
		pgtest.Settles(t, pool, 0, "SELECT count(*) "+others+" AND xact_start IS NOT NULL")
	})
}

// TestListenerFailsAlone: a listener that blocks, one that parks every key and one whose handler hangs cost another
// listener of the same topic neither time nor attempts.
func TestListenerFailsAlone(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	retry := outbox.Retry{MaxAttempts: math.MaxInt32, BaseDelay: time.Millisecond, MaxDelay: 2 * time.Millisecond}
	fix := make(chan struct{})
	begin := func(name string, park bool, fail func(outbox.Delivery[runtimetest.Said]) error) *runtimetest.Notes {
		h := runtimetest.NewNotes()
		h.Fail = fail
		runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: name, ParkKeys: park, Retry: retry}, listener.Config{}, h))
		return h
	}
	untilFixed := func(outbox.Delivery[runtimetest.Said]) error {
		select {
		case <-fix:
			return nil
		default:
			return runtimetest.ErrHandler
		}
	}
	blocked := begin("blocked", false, untilFixed)
	parking := begin("parking", true, untilFixed)
	hanging := begin("hanging", false, func(outbox.Delivery[runtimetest.Said]) error {
		<-fix
		return nil
	})
	well := begin("well", false, nil)
	c := runtimetest.NewCrowd("a", "b", "c", "d")
	for n := range 20 {
		c.Enqueue(t, pool, 5)
		well.Await(t, 5*(n+1))
	}
	require.Equal(t, 100, well.InOrder(t))
	for _, d := range well.Got {
		require.Equal(t, 1, d.Attempt)
	}
	for _, h := range []*runtimetest.Notes{blocked, parking, hanging} {
		require.Empty(t, h.Names())
	}
	require.Equal(t, 0, pgtest.Value[int](t, pool, "SELECT retry_count FROM outbox.listeners WHERE listener = 'well'"))
	require.Equal(t, "parking", pgtest.Value[string](t, pool, "SELECT string_agg(DISTINCT listener, ' ') FROM outbox.parked"))
	close(fix)
	for _, h := range []*runtimetest.Notes{blocked, parking, hanging} {
		h.Await(t, 100)
		require.Equal(t, 100, h.InOrder(t))
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}
