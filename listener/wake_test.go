package listener_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// dozing is a configuration in which only the doorbell wakes the listener.
func dozing() listener.Config {
	return listener.Config{LeaseDuration: 3 * runtimetest.Rarely, PollInterval: runtimetest.Rarely, Logger: runtimetest.DiscardLogger()}
}

// TestListenerWakes: the doorbell wakes an idle listener, whichever pool listens. A poll finds the events of silent
// topics, and all events without a doorbell.
func TestListenerWakes(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	polling := listener.Config{Wake: outbox.WakePoll, PollInterval: 30 * time.Millisecond}
	inTime := listener.Config{PollInterval: 30 * time.Millisecond}
	for name, c := range map[string]struct {
		cfg    listener.Config
		silent bool // the enqueue does not ring
		apart  bool // another pool listens
	}{
		"bell":                  {cfg: dozing()},
		"bell of another pool":  {cfg: dozing(), apart: true},
		"poll without a bell":   {cfg: polling},
		"poll, silent topic":    {cfg: inTime, silent: true},
		"poll, without, silent": {cfg: polling, silent: true},
	} {
		for _, shards := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d shards", name, shards), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				if c.apart {
					c.cfg.ListenPool = pgtest.AnotherPool(t, pool)
				}
				topic := runtimetest.SaidTopic
				topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Silent = c.silent })
				h := runtimetest.NewNotes()
				l := runtimetest.ListenTo(t, pool, listener.Spec{Shards: shards}, c.cfg, h)
				watch := listener.Watch(l)
				stop := runtimetest.StartListener(t, l)
				for n := range 5 {
					pgtest.Receive(t, watch.Idle, "idleness")
					begin := time.Now()
					pgtest.InTx(t, pool, func(tx pgx.Tx) {
						_, err := topic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "a", N: n + 1})
						require.NoError(t, err)
					})
					h.Await(t, n+1)
					require.Less(t, time.Since(begin), runtimetest.Promptly)
				}
				stop()
				require.Equal(t, 5, h.InOrder(t))
			})
		}
	}
}

// TestListenerAtWorkNeedsNoBell: a listener that was woken gives up the lock of the doorbell while it works, so that no
// enqueue sends NOTIFY.
func TestListenerAtWorkNeedsNoBell(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Hold = make(chan struct{})
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, dozing(), h)
	watch := listener.Watch(l)
	stop := runtimetest.StartListener(t, l)
	pgtest.Receive(t, watch.Idle, "idleness")
	require.NotZero(t, runtimetest.Holder(t, pool))
	runtimetest.PutAll(t, pool, "a1", "b1")
	pgtest.Eventually(t, func() bool { return runtimetest.Holder(t, pool) == 0 })
	close(h.Hold)
	h.Await(t, 2)
	pgtest.Eventually(t, func() bool { return runtimetest.Holder(t, pool) != 0 })
	stop()
}

// TestListenerMissesNoWakeUp: events are enqueued at any moment while several replicas go to sleep. Nobody polls.
func TestListenerMissesNoWakeUp(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	for range 2 {
		runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{Shards: 2}, dozing(), h))
	}
	c := runtimetest.NewCrowd("a", "b", "c", "d", "e", "f")
	total, last := 0, runtimetest.Rounds(60)
	for round := range last + 1 {
		n := 1 + rand.IntN(3)
		total += n
		c.Enqueue(t, pool, n)
		if round == last || rand.IntN(2) == 0 {
			begin := time.Now()
			h.Await(t, total)
			require.Less(t, time.Since(begin), runtimetest.Promptly, "a wake-up was missed")
		}
	}
	require.Equal(t, total, h.InOrder(t))
}

// TestListenerStaysAwakeWhileAnEnqueueIsOpen: the doorbell refuses to watch while a transaction that has enqueued is
// open; the listener checks repeatedly until it commits.
func TestListenerStaysAwakeWhileAnEnqueueIsOpen(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, dozing(), h)
	watch := listener.Watch(l)
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := runtimetest.SaidTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "a", N: 1})
	require.NoError(t, err)
	runtimetest.StartListener(t, l)
	pgtest.Receive(t, watch.Refused, "a refusal")
	pgtest.Receive(t, watch.Refused, "another")
	require.Empty(t, watch.Idle)
	begin := time.Now()
	require.NoError(t, tx.Commit(t.Context()))
	h.Await(t, 1)
	require.Less(t, time.Since(begin), runtimetest.Promptly)
	pgtest.Receive(t, watch.Idle, "sleep")
}

// TestListenerSurvivesTheLossOfItsBell: the session that listens, or that holds the lock, is killed, and the listeners
// are still woken.
func TestListenerSurvivesTheLossOfItsBell(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	for range 2 {
		l := runtimetest.ListenTo(t, pool, listener.Spec{}, dozing(), h)
		watch := listener.Watch(l)
		runtimetest.StartListener(t, l)
		pgtest.Receive(t, watch.Idle, "sleep")
	}
	for n := range 3 {
		var before int
		pgtest.Eventually(t, func() bool { // who has been woken for nothing may have let go of it
			before = runtimetest.Holder(t, pool)
			return before != 0
		})
		pgtest.Execute(t, pool, "SELECT pg_terminate_backend($1)", before)
		runtimetest.TakenOver(t, pool, before)
		begin := time.Now()
		runtimetest.Put(t, pool, "a", n+1)
		h.Await(t, n+1)
		require.Less(t, time.Since(begin), runtimetest.Promptly)
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE NOT running")
		pgtest.Eventually(t, func() bool { return runtimetest.Holder(t, pool) != 0 })
	}
	require.Equal(t, []string{"a1", "a2", "a3"}, h.Names())
}

// TestListenerIdleWritesNothing: an idle listener that checks all the time changes no row, neither before the first
// event nor after the last, even while a transaction that has enqueued stays open.
func TestListenerIdleWritesNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, wake := range []outbox.Wake{outbox.WakeDoorbell, outbox.WakePoll} {
		t.Run(string(wake), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := runtimetest.NewNotes()
			cfg := listener.Config{Wake: wake, PollInterval: 2 * time.Millisecond, MaxPollInterval: 2 * time.Millisecond, PruneInterval: -1}
			l := runtimetest.ListenTo(t, pool, listener.Spec{Shards: 3}, cfg, h)
			watch := listener.Watch(l)
			runtimetest.StartListener(t, l)
			silent := runtimetest.SaidTopic
			silent = runtimetest.Altered(silent, func(s *outbox.TopicSpec) { s.Silent = true }) // otherwise it would keep the lock
			for n := range 3 {
				tx := pgtest.Begin(t, pool, pgx.TxOptions{}) // from now on
				_, err := silent.Enqueue(t.Context(), tx, runtimetest.Said{Key: "z", N: n + 1})
				require.NoError(t, err)
				h.Await(t, n)
				pgtest.Settles(t, pool, 3, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND (high_seq > 0 OR $1 = 0)", n)
				for range 2 { // the last check may have begun before
					pgtest.Receive(t, watch.Idle, "idleness")
				}
				const versions = "SELECT string_agg(concat(shard, ' ', xmin, ' ', ctid), ', ' ORDER BY shard) FROM outbox.listeners"
				before := pgtest.Value[string](t, pool, versions)
				for range 20 {
					pgtest.Receive(t, watch.Idle, "idleness")
				}
				require.Equal(t, before, pgtest.Value[string](t, pool, versions))
				require.NoError(t, tx.Rollback(t.Context()))
				runtimetest.Put(t, pool, "a", n+1)
			}
			h.Await(t, 3)
		})
	}
}

// TestListenerBacksOffWhileItFindsNothing: the poll interval of a listener without a doorbell grows, and is short again
// once it has found something.
func TestListenerBacksOffWhileItFindsNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	watched, leases := runtimetest.NewGate(t, pool, "name: ListenerTakeLease")
	looks := make(chan time.Time, 10_000)
	leases.OnPass(func() { looks <- time.Now() })
	h := runtimetest.NewNotes()
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error {
		looks <- time.Time{} // between two checks
		return nil
	}
	cfg := listener.Config{Wake: outbox.WakePoll, PollInterval: 2 * time.Millisecond, MaxPollInterval: time.Second}
	stop := runtimetest.StartListener(t, runtimetest.ListenTo(t, watched, listener.Spec{}, cfg, h))
	last := pgtest.Receive(t, looks, "the first check")
	gap := func() time.Duration {
		next := pgtest.Receive(t, looks, "a check")
		defer func() { last = next }()
		return next.Sub(last)
	}
	for longest := time.Duration(0); longest < 700*time.Millisecond; longest = max(longest, gap()) {
	}
	runtimetest.Put(t, pool, "a", 1)
	for !last.IsZero() {
		last = pgtest.Receive(t, looks, "the event")
	}
	last = pgtest.Receive(t, looks, "a check after it")
	shortest := time.Hour
	for range 6 {
		shortest = min(shortest, gap())
	}
	require.Less(t, shortest, 700*time.Millisecond, "unlike those that find nothing")
	stop()
}
