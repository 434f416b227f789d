package listener_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// crowded returns the keys of the tests of shards.
func crowded() *runtimetest.Crowd {
	c := runtimetest.NewCrowd()
	for i := range 40 {
		c.Last[fmt.Sprint("k", i)] = 0
	}
	return c
}

// flow makes c enqueue a few events at a time, not faster than h handles them, until stop, which returns their number.
func flow(t *testing.T, pool *pgxpool.Pool, c *runtimetest.Crowd, h *runtimetest.Notes) (stop func() int) {
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
			h.Mu.Lock()
			ahead := total - len(h.Got)
			h.Mu.Unlock()
			if ahead < 100 {
				c.Enqueue(t, pool, 20)
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

// TestListenerShardsAreBalanced: replicas that start and stop share the shards evenly. Meanwhile events are handled in
// order and once each.
func TestListenerShardsAreBalanced(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		replica := func() (stop func()) {
			cfg := listener.Config{PollInterval: 20 * time.Millisecond}
			return runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{Shards: 6}, cfg, h))
		}
		shared := func(want string) {
			t.Helper()
			pgtest.Settles(t, pool, 1, `SELECT count(*) FROM (
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
		h.Await(t, total)
		stop[1]()
		stop[2]()
		require.Equal(t, total, h.InOrder(t))
		if transactional {
			require.Equal(t, total, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects"))
		}
	})
}

// TestListenerHandsNoShardToAStoppedProcess: a process that has requested a shard stops before the shard is handed
// over. The holder keeps it, so that the shard is not without a holder for a lease.
func TestListenerHandsNoShardToAStoppedProcess(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Hold = make(chan struct{})
	c := crowded()
	c.Enqueue(t, pool, 80)
	cfg := listener.Config{LeaseDuration: time.Hour, PollInterval: 20 * time.Millisecond, BatchSize: 1}
	spec := listener.Spec{Shards: 2}
	runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, spec, cfg, h))
	pgtest.Receive(t, h.Started, "a handler of one shard")
	pgtest.Receive(t, h.Started, "a handler of the other")
	stop := runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, spec, cfg, runtimetest.NewNotes()))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE wanted_by IS NOT NULL")
	stop()
	begin := time.Now()
	close(h.Hold)
	h.Await(t, 80)
	require.Less(t, time.Since(begin), runtimetest.Promptly)
	require.Equal(t, 80, h.InOrder(t))
}

// TestListenerHandsOverImmediately: a process that requests a shard gets it with the next lease, and handles its events
// although it sleeps and hardly ever polls, even if it does not receive rings yet when it is woken.
func TestListenerHandsOverImmediately(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf %t", deaf), func(t *testing.T) {
			t.Parallel()
			runtimetest.BothModes(t, func(t *testing.T, transactional bool) { handsOver(t, transactional, deaf) })
		})
	}
}

func handsOver(t *testing.T, transactional, deaf bool) {
	t.Helper()
	pool := pgtest.Database(t)
	first, second := runtimetest.NewNotes(), runtimetest.NewNotes()
	first.Hold = make(chan struct{})
	c := crowded()
	c.Enqueue(t, pool, 80)
	cfg := dozing()
	cfg.BatchSize = 5
	holder := runtimetest.ListenAs(t, pool, transactional, listener.Spec{Shards: 2}, cfg, first)
	listener.LimitLeaseAge(holder, 0)         // a lease that continues would handle all events
	listener.LimitTakeOver(holder, time.Hour) // otherwise it would take the shard back if the other process is late
	runtimetest.StartListener(t, holder)
	pgtest.Receive(t, first.Started, "a handler of one shard")
	pgtest.Receive(t, first.Started, "a handler of the other")
	hears := make(chan struct{})
	hear := sync.OnceFunc(func() { close(hears) })
	if deaf {
		ears, gate := runtimetest.NewGate(t, pool, "LISTEN ")
		gate.OnPass(func() { <-hears })
		cfg.ListenPool = ears
	}
	runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{Shards: 2}, cfg, second))
	t.Cleanup(hear) // before it is stopped
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE wanted_by IS NOT NULL")
	begin := time.Now()
	close(first.Hold)
	if deaf {
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = 80")
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE in_batch AND NOT running")
	}
	hear()
	pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = 80")
	require.Less(t, time.Since(begin), runtimetest.Promptly)
	require.NotEmpty(t, second.Names())
	require.Equal(t, 80, len(first.Names())+len(second.Names()))
}

// TestListenerShardsWorkConcurrently: the shards of one process do not wait for those of another.
func TestListenerShardsWorkConcurrently(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	var busy runtimetest.Gauge
	full := make(chan struct{})
	all := sync.OnceFunc(func() { close(full) })
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error {
		defer busy.Leave()
		if busy.Enter() == 4 { // for the first time, or again
			all()
		}
		<-full
		return nil
	}
	c := crowded() // each of four shards has some of forty keys
	c.Enqueue(t, pool, 400)
	require.Equal(t, 4, pgtest.Value[int](t, pool, "SELECT count(DISTINCT bucket % 4)::int FROM outbox.log"))
	for range 2 {
		runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{Shards: 4}, listener.Config{PollInterval: 20 * time.Millisecond}, h))
	}
	h.Await(t, 400)
	require.Equal(t, 400, h.InOrder(t))
	require.EqualValues(t, 4, busy.Most.Load(), "one handler per shard")
}

// TestListenerChangesItsShards: the number goes up and down in rolling deployments while events arrive and some of them
// fail. Nothing is lost, handled twice or out of order.
func TestListenerChangesItsShards(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
				pool := pgtest.Database(t)
				h := runtimetest.NewNotes()
				h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
					if d.Payload.N%10 == 0 && d.Attempt < 3 {
						return runtimetest.ErrHandler
					}
					return nil
				}
				replica := func(shards int) (stop func()) {
					cfg := listener.Config{PollInterval: 20 * time.Millisecond, BatchSize: 25}
					spec := listener.Spec{Shards: shards, ParkKeys: park, Retry: soon(5)}
					return runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, spec, cfg, h))
				}
				var end func() int
				stop := func() { end = flow(t, pool, crowded(), h) }
				for _, shards := range []int{1, 4, 3, 7, 1, 2} {
					next := replica(shards)
					pgtest.Settles(t, pool, shards, "SELECT count(*) FILTER (WHERE reshard_to IS NULL AND barrier IS NULL AND shards = $1) FROM outbox.listeners", shards)
					require.Equal(t, shards, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.listeners"))
					stop() // the listener has the new number
					stop = next
				}
				total := end()
				h.Await(t, total)
				stop()
				require.Equal(t, total, h.InOrder(t))
				require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
				if transactional {
					require.Equal(t, total, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects"))
				}
			})
		})
	}
}

// TestListenerReshardsWithStragglers: transactions that are open across a change of shards, and commit at any time after
// it, are delivered once.
func TestListenerReshardsWithStragglers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	want := []string{}
	var open []pgx.Tx
	for i, shards := range []int{1, 3, 2, 5, 1} {
		late := pgtest.Begin(t, pool, pgx.TxOptions{})
		for _, key := range []string{"x", "y", "z"} {
			_, err := runtimetest.SaidTopic.Enqueue(t.Context(), late, runtimetest.Said{Key: fmt.Sprint(key, i), N: 1})
			require.NoError(t, err)
			want = append(want, fmt.Sprintf("%s%d1", key, i))
		}
		open = append(open, late)
		runtimetest.Put(t, pool, fmt.Sprint("a", i), 1)
		want = append(want, fmt.Sprintf("a%d1", i))
		runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Shards: shards}, listener.Config{}, h))
		require.Equal(t, shards, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.listeners"))
		if i%2 == 1 { // the older one stays open across another change
			require.NoError(t, open[0].Commit(t.Context()))
			open = open[1:]
		}
	}
	for _, tx := range open {
		require.NoError(t, tx.Commit(t.Context()))
	}
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h))
	got := h.Names()
	slices.Sort(got)
	slices.Sort(want)
	require.Equal(t, want, got)
}

// TestListenerReshardsParkedEvents: parked events are handled in order by the shard that has their key now.
func TestListenerReshardsParkedEvents(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		if d.Payload.N == 1 && d.Attempt < 4 {
			return runtimetest.ErrHandler
		}
		return nil
	}
	open := func(shards int) *listener.Listener {
		return runtimetest.ListenTo(t, pool, listener.Spec{Shards: shards, ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, h)
	}
	runtimetest.PutAll(t, pool, "a1", "b1", "c1", "d1", "a2", "b2", "c2", "d2")
	for round, shards := range []int{1, 4, 2} {
		require.Equal(t, listener.Report{Retried: 4}, runtimetest.DrainAll(t, open(shards)))
		runtimetest.PutAll(t, pool, fmt.Sprint("a", round+3), fmt.Sprint("d", round+3))
		runtimetest.DrainAll(t, open(shards))
		runtimetest.RetryNow(t, pool)
	}
	require.Equal(t, listener.Report{Delivered: 14}, runtimetest.DrainAll(t, open(3)))
	require.Equal(t, 14, h.InOrder(t))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
}

// TestListenerReshardWaitsForADeadHolder: a shard whose holder was killed is taken over before the number changes.
func TestListenerReshardWaitsForADeadHolder(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	runtimetest.MakeEffects(t, pool)
	c := crowded()
	c.Enqueue(t, pool, 100)
	child := newListenerChild(t, pool, listenerOrders{Lease: runtimetest.CrashLease, Poll: 50 * time.Millisecond, Attempts: 5, Shards: 2, Hang: true})
	child.Await(t, runtimetest.Handling)
	child.Kill()
	h := runtimetest.NewNotes()
	cfg := listener.Config{LeaseDuration: runtimetest.CrashLease, PollInterval: 50 * time.Millisecond}
	runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{Shards: 5}, cfg, h))
	h.Await(t, 100)
	pgtest.Settles(t, pool, 5, "SELECT count(*) FROM outbox.listeners WHERE reshard_to IS NULL AND shards = 5")
	c.Enqueue(t, pool, 20)
	h.Await(t, 120)
	require.Equal(t, 120, h.InOrder(t))
}

// TestListenerCancelsAChangeOfShards: a process with the present number of shards, started last, cancels a requested
// change, even after the barrier was set. This happens when a deployment is rolled back before the slowest shard has
// reached the barrier.
func TestListenerCancelsAChangeOfShards(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		h.Hold = make(chan struct{})
		replica := func(shards int) (stop func()) {
			cfg := listener.Config{PollInterval: 20 * time.Millisecond, BatchSize: 5}
			return runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{Shards: shards}, cfg, h))
		}
		c := crowded()
		c.Enqueue(t, pool, 40)
		old := replica(2)
		pgtest.Receive(t, h.Started, "a handler")
		pgtest.Receive(t, h.Started, "a handler")
		for range 2 {
			rolled := replica(4)
			pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.listeners WHERE reshard_to = 4 AND barrier IS NOT NULL")
			c.Enqueue(t, pool, 40)
			rolled()
			back := replica(2)
			pgtest.Settles(t, pool, 2, "SELECT count(*) FROM outbox.listeners WHERE reshard_to IS NULL AND barrier IS NULL")
			defer back()
		}
		close(h.Hold)
		h.Await(t, 120)
		c.Enqueue(t, pool, 20)
		h.Await(t, 140)
		old()
		require.Equal(t, 140, h.InOrder(t))
		require.Equal(t, 2, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.listeners WHERE shards = 2"))
	})
}
