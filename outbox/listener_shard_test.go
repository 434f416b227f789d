package outbox_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// crowded is the keys of the tests of shards.
func crowded() *crowd {
	c := newCrowd()
	for i := range 40 {
		c.last[fmt.Sprint("k", i)] = 0
	}
	return c
}

// flow has c enqueue a few events at a time, not faster than h handles them, until stop, which returns how many there were.
func flow(t *testing.T, pool *pgxpool.Pool, c *crowd, h *notes) (stop func() int) {
	t.Helper()
	over, ended := make(chan struct{}), make(chan struct{})
	total := 0
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
			h.mu.Lock()
			ahead := total - len(h.got)
			h.mu.Unlock()
			if ahead < 100 {
				c.enqueue(t, pool, 20)
				total += 20
			}
		}
	}()
	stop = sync.OnceValue(func() int {
		close(over)
		<-ended
		return total
	})
	t.Cleanup(func() { stop() })
	return stop
}

// TestListenerShardsAreBalanced: replicas that come and go share the shards evenly, while events flow, in order and once
// each.
func TestListenerShardsAreBalanced(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := newNotes()
		replica := func() (stop func()) {
			cfg := outbox.ListenerConfig{PollInterval: 20 * time.Millisecond}
			return startListener(t, listenAs(t, pool, transactional, outbox.ListenerSpec{Shards: 6}, cfg, h))
		}
		shared := func(want string) {
			t.Helper()
			settles(t, pool, 1, `SELECT count(*) FROM (
				SELECT string_agg(held::text, ' ' ORDER BY held) AS held
				FROM (SELECT count(*) AS held FROM outbox.listeners WHERE preferred IS NOT NULL GROUP BY preferred) AS h
			) AS o WHERE held = $1`, want)
		}
		stop := []func(){replica()}
		end := flow(t, pool, crowded(), h)
		shared("6")
		stop = append(stop, replica())
		shared("3 3")
		stop = append(stop, replica())
		shared("2 2 2")
		stop[0]()
		shared("3 3")
		total := end()
		h.await(t, total)
		stop[1]()
		stop[2]()
		require.Equal(t, total, h.inOrder(t))
		if transactional {
			require.Equal(t, total, value[int](t, pool, "SELECT count(*)::int FROM effects"))
		}
	})
}

// TestListenerHandsNoShardToAStoppedProcess: a process that has asked for a shard stops before it is handed over. The holder keeps
// it, rather than leave it to nobody for a lease.
func TestListenerHandsNoShardToAStoppedProcess(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.hold = make(chan struct{})
	c := crowded()
	c.enqueue(t, pool, 80)
	cfg := outbox.ListenerConfig{LeaseDuration: time.Hour, PollInterval: 20 * time.Millisecond, BatchSize: 1}
	spec := outbox.ListenerSpec{Shards: 2}
	startListener(t, listenTo(t, pool, spec, cfg, h))
	receive(t, h.started, "a handler of one shard")
	receive(t, h.started, "a handler of the other")
	stop := startListener(t, listenTo(t, pool, spec, cfg, newNotes()))
	settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE wanted_by IS NOT NULL")
	stop()
	begin := time.Now()
	close(h.hold)
	h.await(t, 80)
	require.Less(t, time.Since(begin), promptly)
	require.Equal(t, 80, h.inOrder(t))
}

// TestListenerHandsOverImmediately: a process that asks for a shard gets it with the next lease, and goes on although it sleeps and
// hardly ever polls; also if it does not hear the bell yet when it is told.
func TestListenerHandsOverImmediately(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf %t", deaf), func(t *testing.T) {
			t.Parallel()
			bothModes(t, func(t *testing.T, transactional bool) { handsOver(t, transactional, deaf) })
		})
	}
}

func handsOver(t *testing.T, transactional, deaf bool) {
	t.Helper()
	pool := pgtest.Database(t)
	first, second := newNotes(), newNotes()
	first.hold = make(chan struct{})
	c := crowded()
	c.enqueue(t, pool, 80)
	cfg := dozing()
	cfg.BatchSize = 5
	holder := listenAs(t, pool, transactional, outbox.ListenerSpec{Shards: 2}, cfg, first)
	outbox.LimitLeaseAge(holder, 0) // a lease that goes on would handle all there is
	startListener(t, holder)
	receive(t, first.started, "a handler of one shard")
	receive(t, first.started, "a handler of the other")
	hears := make(chan struct{})
	hear := sync.OnceFunc(func() { close(hears) })
	outbox.LimitTakeOver(holder, time.Hour) // or it would take back what the other takes late
	if deaf {
		ears, gate := gated(t, pool, "LISTEN ")
		gate.onPass(func() { <-hears })
		cfg.ListenPool = ears
	}
	startListener(t, listenAs(t, pool, transactional, outbox.ListenerSpec{Shards: 2}, cfg, second))
	t.Cleanup(hear) // before it is stopped
	settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE wanted_by IS NOT NULL")
	begin := time.Now()
	close(first.hold)
	if deaf {
		settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = 80")
		settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE in_batch AND NOT running")
	}
	hear()
	settles(t, pool, 2, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = 80")
	require.Less(t, time.Since(begin), promptly)
	require.NotEmpty(t, second.names())
	require.Equal(t, 80, len(first.names())+len(second.names()))
}

// TestListenerShardsWorkConcurrently: what one process holds does not wait for what another does.
func TestListenerShardsWorkConcurrently(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	var busy gauge
	full := make(chan struct{})
	all := sync.OnceFunc(func() { close(full) })
	h.fail = func(outbox.Delivery[said]) error {
		defer busy.leave()
		if busy.enter() == 4 { // for the first time, or again
			all()
		}
		<-full
		return nil
	}
	c := crowded() // of forty keys some are in each of four shards
	c.enqueue(t, pool, 400)
	require.Equal(t, 4, value[int](t, pool, "SELECT count(DISTINCT bucket % 4)::int FROM outbox.log"))
	for range 2 {
		startListener(t, listenTo(t, pool, outbox.ListenerSpec{Shards: 4}, outbox.ListenerConfig{PollInterval: 20 * time.Millisecond}, h))
	}
	h.await(t, 400)
	require.Equal(t, 400, h.inOrder(t))
	require.EqualValues(t, 4, busy.most.Load(), "one handler a shard")
}

// TestListenerChangesItsShards: the number goes up and down in a rolling fashion while events flow and some of them fail.
// Nothing is lost, handled twice or out of order.
func TestListenerChangesItsShards(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			bothModes(t, func(t *testing.T, transactional bool) {
				pool := pgtest.Database(t)
				h := newNotes()
				h.fail = func(d outbox.Delivery[said]) error {
					if d.Payload.N%10 == 0 && d.Attempt < 3 {
						return errHandler
					}
					return nil
				}
				replica := func(shards int) (stop func()) {
					cfg := outbox.ListenerConfig{PollInterval: 20 * time.Millisecond, BatchSize: 25}
					spec := outbox.ListenerSpec{Shards: shards, ParkKeys: park, Retry: soon(5)}
					return startListener(t, listenAs(t, pool, transactional, spec, cfg, h))
				}
				var end func() int
				stop := func() { end = flow(t, pool, crowded(), h) }
				for _, shards := range []int{1, 4, 3, 7, 1, 2} {
					next := replica(shards)
					settles(t, pool, shards, "SELECT count(*) FILTER (WHERE reshard_to IS NULL AND barrier IS NULL AND shards = $1) FROM outbox.listeners", shards)
					require.Equal(t, shards, value[int](t, pool, "SELECT count(*)::int FROM outbox.listeners"))
					stop() // it has followed
					stop = next
				}
				total := end()
				h.await(t, total)
				stop()
				require.Equal(t, total, h.inOrder(t))
				require.Zero(t, count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
				if transactional {
					require.Equal(t, total, value[int](t, pool, "SELECT count(*)::int FROM effects"))
				}
			})
		})
	}
}

// TestListenerReshardsWithStragglers: transactions that are open across a change of shards, and commit at any time after
// it, are delivered once.
func TestListenerReshardsWithStragglers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	want := []string{}
	var open []pgx.Tx
	for i, shards := range []int{1, 3, 2, 5, 1} {
		late := begin(t, pool, pgx.TxOptions{})
		for _, key := range []string{"x", "y", "z"} {
			_, err := saidTopic.Untyped().Enqueue(t.Context(), late, said{Key: fmt.Sprint(key, i), N: 1})
			require.NoError(t, err)
			want = append(want, fmt.Sprintf("%s%d1", key, i))
		}
		open = append(open, late)
		put1(t, pool, fmt.Sprint("a", i), 1)
		want = append(want, fmt.Sprintf("a%d1", i))
		drainAll(t, listenTo(t, pool, outbox.ListenerSpec{Shards: shards}, outbox.ListenerConfig{}, h))
		require.Equal(t, shards, value[int](t, pool, "SELECT count(*)::int FROM outbox.listeners"))
		if i%2 == 1 { // the older one stays open across another change
			require.NoError(t, open[0].Commit(t.Context()))
			open = open[1:]
		}
	}
	for _, tx := range open {
		require.NoError(t, tx.Commit(t.Context()))
	}
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{}, h))
	got := h.names()
	slices.Sort(got)
	slices.Sort(want)
	require.Equal(t, want, got)
}

// TestListenerReshardsParkedEvents: what was parked is handled by the shard that has its key now, in order.
func TestListenerReshardsParkedEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.fail = func(d outbox.Delivery[said]) error {
		if d.Payload.N == 1 && d.Attempt < 4 {
			return errHandler
		}
		return nil
	}
	open := func(shards int) *outbox.Listener {
		return listenTo(t, pool, outbox.ListenerSpec{Shards: shards, ParkKeys: true, Retry: late}, outbox.ListenerConfig{}, h)
	}
	putAll(t, pool, "a1", "b1", "c1", "d1", "a2", "b2", "c2", "d2")
	for round, shards := range []int{1, 4, 2} {
		require.Equal(t, outbox.DrainReport{Retried: 4}, drainAll(t, open(shards)))
		putAll(t, pool, fmt.Sprint("a", round+3), fmt.Sprint("d", round+3))
		drainAll(t, open(shards))
		retryNow(t, pool)
	}
	require.Equal(t, outbox.DrainReport{Delivered: 14}, drainAll(t, open(3)))
	require.Equal(t, 14, h.inOrder(t))
	require.Zero(t, count(t, pool, "SELECT count(*) FROM outbox.parked"))
}

// TestListenerReshardWaitsForADeadHolder: a shard whose holder was killed is taken over before the number changes.
func TestListenerReshardWaitsForADeadHolder(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	makeEffects(t, pool)
	c := crowded()
	c.enqueue(t, pool, 100)
	child := newListenerChild(t, pool, listenerOrders{Lease: crashLease, Poll: 50 * time.Millisecond, Attempts: 5, Shards: 2, Hang: true})
	child.await(t, handling)
	child.kill()
	h := newNotes()
	cfg := outbox.ListenerConfig{LeaseDuration: crashLease, PollInterval: 50 * time.Millisecond}
	startListener(t, listenTo(t, pool, outbox.ListenerSpec{Shards: 5}, cfg, h))
	h.await(t, 100)
	settles(t, pool, 5, "SELECT count(*) FROM outbox.listeners WHERE reshard_to IS NULL AND shards = 5")
	c.enqueue(t, pool, 20)
	h.await(t, 120)
	require.Equal(t, 120, h.inOrder(t))
}

// TestListenerCancelsAChangeOfShards: a process with the number that there is, started last, ends a change that was asked for,
// also once the barrier is set: a deployment is rolled back before the slowest shard has come there.
func TestListenerCancelsAChangeOfShards(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := newNotes()
		h.hold = make(chan struct{})
		replica := func(shards int) (stop func()) {
			cfg := outbox.ListenerConfig{PollInterval: 20 * time.Millisecond, BatchSize: 5}
			return startListener(t, listenAs(t, pool, transactional, outbox.ListenerSpec{Shards: shards}, cfg, h))
		}
		c := crowded()
		c.enqueue(t, pool, 40)
		old := replica(2)
		receive(t, h.started, "a handler")
		receive(t, h.started, "a handler")
		for range 2 {
			rolled := replica(4)
			settles(t, pool, 2, "SELECT count(*) FROM outbox.listeners WHERE reshard_to = 4 AND barrier IS NOT NULL")
			c.enqueue(t, pool, 40)
			rolled()
			back := replica(2)
			settles(t, pool, 2, "SELECT count(*) FROM outbox.listeners WHERE reshard_to IS NULL AND barrier IS NULL")
			defer back()
		}
		close(h.hold)
		h.await(t, 120)
		c.enqueue(t, pool, 20)
		h.await(t, 140)
		old()
		require.Equal(t, 140, h.inOrder(t))
		require.Equal(t, 2, value[int](t, pool, "SELECT count(*)::int FROM outbox.listeners WHERE shards = 2"))
	})
}
