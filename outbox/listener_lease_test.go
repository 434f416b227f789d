package outbox_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerHasOneHolderAtATime: of several replicas one at a time handles events, in order and each once, whoever comes
// and goes.
func TestListenerHasOneHolderAtATime(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := newNotes()
		var busy gauge
		h.fail = func(outbox.Delivery[said]) error {
			busy.enter()
			defer busy.leave()
			<-time.After(100 * time.Microsecond)
			return nil
		}
		replica := func() (stop func()) {
			cfg := outbox.ListenerConfig{PollInterval: 10 * time.Millisecond, BatchSize: 7}
			return startListener(t, listenAs(t, pool, transactional, outbox.ListenerSpec{}, cfg, h))
		}
		c := newCrowd("a", "b", "c")
		stops := []func(){replica(), replica()}
		for round := range 6 {
			c.enqueue(t, pool, 40)
			h.await(t, 40*round+20)
			stops = append(stops, replica())
			stops[0]() // in the middle of what is left
			stops = stops[1:]
		}
		h.await(t, 240)
		for _, stop := range stops {
			stop()
		}
		require.Equal(t, 240, h.inOrder(t))
		require.EqualValues(t, 1, busy.most.Load())
		if transactional {
			require.Equal(t, 240, value[int](t, pool, "SELECT count(*)::int FROM effects"))
		}
	})
}

// TestListenerStopHandsOver: when Run's context ends its handler may finish, and counts; the rest of the batch is another's
// at once, though the lease would last for long and nobody polls, with no attempt spent.
func TestListenerStopHandsOver(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		cfg := dozing()
		first, second := newNotes(), newNotes()
		first.hold = make(chan struct{})
		ending, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := listenAs(t, pool, transactional, outbox.ListenerSpec{}, cfg, first)
		over := make(chan error, 1)
		go func() { over <- l.Run(ending) }()
		putAll(t, pool, "a1", "b1", "a2")
		receive(t, first.started, "the handler")
		startListener(t, listenAs(t, pool, transactional, outbox.ListenerSpec{}, cfg, second))
		cancel()
		select {
		case err := <-over:
			require.FailNow(t, "Run did not wait for its handler", err)
		case <-time.After(50 * time.Millisecond):
		}
		require.Empty(t, second.started, "still held")
		close(first.hold)
		require.NoError(t, receive(t, over, "the end of Run"))
		begin := time.Now()
		second.await(t, 2)
		require.Less(t, time.Since(begin), promptly)
		require.Equal(t, []string{"a1"}, first.names())
		require.Equal(t, []string{"b1", "a2"}, second.names())
		require.Equal(t, []int{1, 1}, []int{second.got[0].Attempt, second.got[1].Attempt})
	})
}

// TestListenerShutdownTimeout: a handler that heeds its context has failed, with the reason, and is settled. One that does
// not is named by Run; what others did is kept, and nobody else gets its event while the lease lasts.
func TestListenerShutdownTimeout(t *testing.T) {
	t.Parallel()
	for _, transactional := range []bool{false, true} {
		for _, heeds := range []bool{true, false} {
			t.Run(fmt.Sprintf("transactional %t, heeds %t", transactional, heeds), func(t *testing.T) {
				t.Parallel()
				testShutdownTimeout(t, transactional, heeds)
			})
		}
	}
}

func testShutdownTimeout(t *testing.T, transactional, heeds bool) {
	t.Helper()
	pool := pgtest.Database(t)
	h := newNotes()
	started, open, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h.fail = func(d outbox.Delivery[said]) error {
		if d.Payload.Key != "x" {
			return nil
		}
		close(started)
		<-open
		close(gone)
		return nil
	}
	if heeds {
		h.hold = make(chan struct{}) // and is cancelled
	}
	cfg := outbox.ListenerConfig{ShutdownTimeout: 50 * time.Millisecond, LeaseDuration: time.Hour}
	if !transactional {
		cfg.Concurrency = 2
	}
	l := listenAs(t, pool, transactional, outbox.ListenerSpec{Retry: late}, cfg, h)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	putAll(t, pool, "a1", "x1")
	other := listenAs(t, pool, transactional, outbox.ListenerSpec{}, outbox.ListenerConfig{}, newNotes())
	if heeds {
		receive(t, h.started, "the handler")
		cancel()
		require.NoError(t, receive(t, over, "the end of Run"))
		require.Equal(t, "1 listener is stopping: ShutdownTimeout has passed",
			value[string](t, pool, "SELECT concat(retry_count, ' ', last_error) FROM outbox.listeners WHERE lease_by IS NULL"))
		retryNow(t, pool)
		require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, other))
		return
	}
	receive(t, started, "the handler")
	h.await(t, 1) // a1 is done
	cancel()
	require.EqualError(t, receive(t, over, "the end of Run"),
		"stop listener: still running after 50ms: test/said "+idOf(t, pool, "x1").String())
	require.Equal(t, outbox.DrainReport{}, drainAll(t, other), "left to its lease")
	close(open)
	receive(t, gone, "the end of the handler") // before the leak check
	execute(t, pool, "UPDATE outbox.listeners SET lease_until = now()")
	require.Equal(t, outbox.DrainReport{Delivered: map[bool]int{false: 1, true: 2}[transactional]}, drainAll(t, other))
	if transactional {
		require.Equal(t, "a1 x1", effects(t, pool))
	}
}

// TestListenerStopsWithoutDatabase: Run comes back although nothing can be settled any more.
func TestListenerStopsWithoutDatabase(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		proxy := newProxy(t, pool)
		h := newNotes()
		h.hold = make(chan struct{})
		makeEffects(t, pool)
		l := listenAs(t, pool, transactional, outbox.ListenerSpec{}, outbox.ListenerConfig{ShutdownTimeout: 50 * time.Millisecond, LeaseDuration: longLease}, h)
		outbox.ThroughPool(l, proxy.pool(t))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		over := make(chan error, 1)
		go func() { over <- l.Run(ctx) }()
		putAll(t, pool, "a1", "b1")
		receive(t, h.started, "the handler")
		proxy.swallow()
		close(h.hold)
		h.await(t, map[bool]int{false: 2, true: 1}[transactional]) // the next needs the database
		cancel()
		err := receive(t, over, "the end of Run, long before that of the lease")
		if !transactional { // else nothing has happened that could be settled
			require.ErrorContains(t, err, "stop listener: 2 events of shard 0 could not be settled: ")
		}
	})
}

// TestListenerLeavesNothingOpen: no transaction is open while a leased handler runs, one is in transactional mode; and
// after Run no connection is in use, no lease held, and no lock.
func TestListenerLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		own := anotherPool(t, pool)
		h := newNotes()
		h.hold = make(chan struct{})
		l := listenAs(t, own, transactional, outbox.ListenerSpec{Shards: 2}, outbox.ListenerConfig{}, h)
		stop := startListener(t, l)
		putAll(t, pool, "a1", "a2")
		receive(t, h.started, "the handler")
		const others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
		settles(t, pool, map[bool]int{false: 0, true: 1}[transactional], "SELECT count(*) "+others+" AND xact_start IS NOT NULL")
		close(h.hold)
		h.await(t, 2)
		stop()
		require.Zero(t, own.Stat().AcquiredConns())
		require.Zero(t, count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE lease_by IS NOT NULL OR running"))
		require.Zero(t, holder(t, pool))
		own.Reset()
		own.Close()
		settles(t, pool, 0, "SELECT count(*) "+others+" AND xact_start IS NOT NULL")
	})
}

// TestListenerFailsAlone: one listener that blocks, one that parks every key and one whose holder hangs take nothing
// away from another of the same topic: neither time nor attempts.
func TestListenerFailsAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	retry := outbox.Retry{MaxAttempts: math.MaxInt32, BaseDelay: time.Millisecond, MaxDelay: 2 * time.Millisecond}
	mend := make(chan struct{})
	begin := func(name string, park bool, fail func(outbox.Delivery[said]) error) *notes {
		h := newNotes()
		h.fail = fail
		startListener(t, listenTo(t, pool, outbox.ListenerSpec{Name: name, ParkKeys: park, Retry: retry}, outbox.ListenerConfig{}, h))
		return h
	}
	untilMended := func(outbox.Delivery[said]) error {
		select {
		case <-mend:
			return nil
		default:
			return errHandler
		}
	}
	blocked := begin("blocked", false, untilMended)
	parking := begin("parking", true, untilMended)
	hanging := begin("hanging", false, func(outbox.Delivery[said]) error {
		<-mend
		return nil
	})
	well := begin("well", false, nil)
	c := newCrowd("a", "b", "c", "d")
	for n := range 20 {
		c.enqueue(t, pool, 5)
		well.await(t, 5*(n+1))
	}
	require.Equal(t, 100, well.inOrder(t))
	for _, d := range well.got {
		require.Equal(t, 1, d.Attempt)
	}
	for _, h := range []*notes{blocked, parking, hanging} {
		require.Empty(t, h.names())
	}
	require.Equal(t, 0, value[int](t, pool, "SELECT retry_count FROM outbox.listeners WHERE listener = 'well'"))
	require.Equal(t, "parking", value[string](t, pool, "SELECT string_agg(DISTINCT listener, ' ') FROM outbox.parked"))
	close(mend)
	for _, h := range []*notes{blocked, parking, hanging} {
		h.await(t, 100)
		require.Equal(t, 100, h.inOrder(t))
	}
	require.Zero(t, count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}
