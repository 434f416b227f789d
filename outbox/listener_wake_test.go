package outbox_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// dozing is a configuration that wakes up by the bell or not at all.
func dozing() outbox.ListenerConfig {
	return outbox.ListenerConfig{LeaseDuration: 3 * rarely, PollInterval: rarely, Logger: quiet()}
}

// TestListenerWakes: an idle listener learns of an event by the bell, whatever pool hears it, and of one that rings no bell
// or without one by its poll.
func TestListenerWakes(t *testing.T) {
	t.Parallel()
	polling := outbox.ListenerConfig{Wake: outbox.WakePoll, PollInterval: 30 * time.Millisecond}
	inTime := outbox.ListenerConfig{PollInterval: 30 * time.Millisecond}
	for name, c := range map[string]struct {
		cfg    outbox.ListenerConfig
		silent bool // no bell is rung
		apart  bool // the bell is heard by another pool
	}{
		"bell":                  {cfg: dozing()},
		"bell of another pool":  {cfg: dozing(), apart: true},
		"poll without a bell":   {cfg: polling},
		"poll, nobody rang":     {cfg: inTime, silent: true},
		"poll, without, silent": {cfg: polling, silent: true},
	} {
		for _, shards := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d shards", name, shards), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				if c.apart {
					c.cfg.ListenPool = anotherPool(t, pool)
				}
				topic := saidTopic
				topic = altered(topic, func(s *outbox.TopicSpec) { s.Silent = c.silent })
				h := newNotes()
				l := listenTo(t, pool, outbox.ListenerSpec{Shards: shards}, c.cfg, h)
				watch := outbox.WatchListener(l)
				stop := startListener(t, l)
				for n := range 5 {
					receive(t, watch.Idle, "idleness")
					begin := time.Now()
					inTx(t, pool, func(tx pgx.Tx) {
						_, err := topic.Untyped().Enqueue(t.Context(), tx, said{Key: "a", N: n + 1})
						require.NoError(t, err)
					})
					h.await(t, n+1)
					require.Less(t, time.Since(begin), promptly)
				}
				stop()
				require.Equal(t, 5, h.inOrder(t))
			})
		}
	}
}

// TestListenerAtWorkNeedsNoBell: a listener that was woken lets go of the doorbell while it works, so that no enqueue
// notifies anybody.
func TestListenerAtWorkNeedsNoBell(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.hold = make(chan struct{})
	l := listenTo(t, pool, outbox.ListenerSpec{}, dozing(), h)
	watch := outbox.WatchListener(l)
	stop := startListener(t, l)
	receive(t, watch.Idle, "idleness")
	require.NotZero(t, holder(t, pool))
	putAll(t, pool, "a1", "b1")
	eventually(t, func() bool { return holder(t, pool) == 0 })
	close(h.hold)
	h.await(t, 2)
	eventually(t, func() bool { return holder(t, pool) != 0 })
	stop()
}

// TestListenerMissesNoWakeUp: events come at any moment of several replicas' falling asleep. Nobody polls.
func TestListenerMissesNoWakeUp(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	for range 2 {
		startListener(t, listenTo(t, pool, outbox.ListenerSpec{Shards: 2}, dozing(), h))
	}
	c := newCrowd("a", "b", "c", "d", "e", "f")
	total, last := 0, rounds(60)
	for round := range last + 1 {
		n := 1 + rand.IntN(3)
		total += n
		c.enqueue(t, pool, n)
		if round == last || rand.IntN(2) == 0 {
			begin := time.Now()
			h.await(t, total)
			require.Less(t, time.Since(begin), promptly, "a wake-up was missed")
		}
	}
	require.Equal(t, total, h.inOrder(t))
}

// TestListenerStaysAwakeWhileAnEnqueueIsOpen: the bell cannot be had while a transaction that has enqueued is open; the listener
// looks again and again until it commits.
func TestListenerStaysAwakeWhileAnEnqueueIsOpen(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	l := listenTo(t, pool, outbox.ListenerSpec{}, dozing(), h)
	watch := outbox.WatchListener(l)
	tx := begin(t, pool, pgx.TxOptions{})
	_, err := saidTopic.Untyped().Enqueue(t.Context(), tx, said{Key: "a", N: 1})
	require.NoError(t, err)
	startListener(t, l)
	receive(t, watch.Refused, "a refusal")
	receive(t, watch.Refused, "another")
	require.Empty(t, watch.Idle)
	begin := time.Now()
	require.NoError(t, tx.Commit(t.Context()))
	h.await(t, 1)
	require.Less(t, time.Since(begin), promptly)
	receive(t, watch.Idle, "sleep")
}

// TestListenerSurvivesTheLossOfItsBell: whoever hears or holds the bell is killed, and the listeners are woken all the
// same.
func TestListenerSurvivesTheLossOfItsBell(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	for range 2 {
		l := listenTo(t, pool, outbox.ListenerSpec{}, dozing(), h)
		watch := outbox.WatchListener(l)
		startListener(t, l)
		receive(t, watch.Idle, "sleep")
	}
	for n := range 3 {
		before := holder(t, pool)
		require.NotZero(t, before)
		execute(t, pool, "SELECT pg_terminate_backend($1)", before)
		takenOver(t, pool, before)
		begin := time.Now()
		put1(t, pool, "a", n+1)
		h.await(t, n+1)
		require.Less(t, time.Since(begin), promptly)
		settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE NOT running")
		eventually(t, func() bool { return holder(t, pool) != 0 })
	}
	require.Equal(t, []string{"a1", "a2", "a3"}, h.names())
}

// TestListenerIdleWritesNothing: an idle listener that looks all the time changes no row, neither before
// the first event nor after the last, also while some transaction that has enqueued stays open.
func TestListenerIdleWritesNothing(t *testing.T) {
	t.Parallel()
	for _, wake := range []outbox.Wake{outbox.WakeDoorbell, outbox.WakePoll} {
		t.Run(string(wake), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := newNotes()
			cfg := outbox.ListenerConfig{Wake: wake, PollInterval: 2 * time.Millisecond, MaxPollInterval: 2 * time.Millisecond, PruneInterval: -1}
			l := listenTo(t, pool, outbox.ListenerSpec{Shards: 3}, cfg, h)
			watch := outbox.WatchListener(l)
			startListener(t, l)
			silent := saidTopic
			silent = altered(silent, func(s *outbox.TopicSpec) { s.Silent = true }) // it would keep the lock
			for n := range 3 {
				tx := begin(t, pool, pgx.TxOptions{}) // from now on
				_, err := silent.Untyped().Enqueue(t.Context(), tx, said{Key: "z", N: n + 1})
				require.NoError(t, err)
				h.await(t, n)
				settles(t, pool, 3, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND (high_seq > 0 OR $1 = 0)", n)
				for range 2 { // the last may have begun before
					receive(t, watch.Idle, "idleness")
				}
				const versions = "SELECT string_agg(concat(shard, ' ', xmin, ' ', ctid), ', ' ORDER BY shard) FROM outbox.listeners"
				before := value[string](t, pool, versions)
				for range 20 {
					receive(t, watch.Idle, "idleness")
				}
				require.Equal(t, before, value[string](t, pool, versions))
				require.NoError(t, tx.Rollback(t.Context()))
				put1(t, pool, "a", n+1)
			}
			h.await(t, 3)
		})
	}
}

// TestListenerBacksOffWhileItFindsNothing: a listener without a bell looks less and less often, and often again once it has
// found something.
func TestListenerBacksOffWhileItFindsNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	watched, leases := gated(t, pool, "name: ListenerTakeLease")
	looks := make(chan time.Time, 10_000)
	leases.onPass(func() { looks <- time.Now() })
	h := newNotes()
	h.fail = func(outbox.Delivery[said]) error {
		looks <- time.Time{} // between two looks
		return nil
	}
	cfg := outbox.ListenerConfig{Wake: outbox.WakePoll, PollInterval: 2 * time.Millisecond, MaxPollInterval: time.Second}
	stop := startListener(t, listenTo(t, watched, outbox.ListenerSpec{}, cfg, h))
	last := receive(t, looks, "the first look")
	gap := func() time.Duration {
		next := receive(t, looks, "a look")
		defer func() { last = next }()
		return next.Sub(last)
	}
	for longest := time.Duration(0); longest < 700*time.Millisecond; longest = max(longest, gap()) {
	}
	put1(t, pool, "a", 1)
	for !last.IsZero() {
		last = receive(t, looks, "the event")
	}
	last = receive(t, looks, "a look after it")
	shortest := time.Hour
	for range 6 {
		shortest = min(shortest, gap())
	}
	require.Less(t, shortest, 700*time.Millisecond, "unlike those that find nothing")
	stop()
}
