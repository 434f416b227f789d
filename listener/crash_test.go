package listener_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/internal/testing/suspend"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerKilledMidBatch repeatedly kills a process with SIGKILL at random points of its leases, sometimes during a
// change of the number of shards. What its handlers wrote in the transaction of the cursor exists once per event.
func TestListenerKilledMidBatch(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		runtimetest.MakeEffects(t, pool)
		o := listenerOrders{
			Transactional: transactional, Lease: runtimetest.LongLease, Poll: 50 * time.Millisecond, BatchSize: 20, Attempts: 1000,
		}
		if !transactional {
			o.Concurrency = 4
		}
		c := runtimetest.NewCrowd("a", "b", "c", "d", "e", "f", "g", "h")
		kills, each := runtimetest.Rounds(20), 40
		for range kills {
			c.Enqueue(t, pool, each)
			o.Shards = 1 + rand.IntN(3)
			child := newListenerChild(t, pool, o)
			for range 1 + rand.IntN(each) { // at least that many are fresh
				child.Await(t, runtimetest.Handling)
			}
			child.Kill()
			runtimetest.ChildIsGone(t, pool)
			expireLeases(t, pool)
		}
		h := runtimetest.NewNotes()
		runtimetest.DrainAll(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{Shards: 2, Retry: outbox.Retry{MaxAttempts: 1000}}, listener.Config{}, h))
		for _, d := range h.Got {
			if !transactional {
				pgtest.Execute(t, pool, runtimetest.EffectSQL, d.ID, d.Payload.Key, d.Payload.N, d.Attempt)
			}
		}
		total := kills * each
		require.Equal(t, total, pgtest.Value[int](t, pool, "SELECT count(DISTINCT event_id)::int FROM effects"))
		require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters"))
		require.Zero(t, pgtest.Value[int](t, pool, runtimetest.Disorder))
		again := pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects") - total
		t.Logf("%d kills, %d events, %d effects repeated, at most %d attempts of one", kills, total, again,
			pgtest.Value[int](t, pool, "SELECT max(attempt) FROM effects"))
		if transactional {
			require.Zero(t, again)
		} else {
			require.LessOrEqual(t, again, kills*o.BatchSize*3)
		}
	})
}

// expireLeases ends every lease, as if its time were over.
func expireLeases(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Execute(t, pool, `UPDATE outbox.listeners AS l SET lease_until = now()
		FROM (SELECT listener, shard FROM outbox.listeners ORDER BY listener, shard FOR UPDATE) AS o
		WHERE l.listener = o.listener AND l.shard = o.shard AND l.lease_by IS NOT NULL`)
}

// TestListenerIsTakenOver: while a process holds a listener and renews its lease, another process gets nothing. After
// the holder is killed, the other continues by itself when the lease has run out, although its poll interval is longer
// than Patience.
func TestListenerIsTakenOver(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		runtimetest.MakeEffects(t, pool)
		runtimetest.PutAll(t, pool, "a1", "b1")
		const poll = 300 * time.Millisecond
		child := newListenerChild(t, pool, listenerOrders{Transactional: transactional, Lease: runtimetest.CrashLease, Poll: poll, Attempts: 5, Hang: true})
		child.Await(t, runtimetest.Handling)
		h := runtimetest.NewNotes()
		cfg := listener.Config{LeaseDuration: runtimetest.CrashLease, PollInterval: poll}
		stop := runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, cfg, h))
		renewedPast(t, pool, runtimetest.CrashLease)
		require.Empty(t, h.Names(), "held by the child")
		child.Kill()
		killed := time.Now()
		h.Await(t, 1)
		took := time.Since(killed)
		h.Await(t, 2)
		stop()
		t.Logf("lease %s, poll %s: taken over %s after the kill", runtimetest.CrashLease, poll, took)
		require.Equal(t, []string{"a1", "b1"}, h.Names())
		require.Equal(t, 1, h.Got[0].Attempt, "it is not known that this event was running")
	})
}

// renewedPast waits until the end of a shard's lease has moved by one and a half leases.
func renewedPast(t testing.TB, pool *pgxpool.Pool, lease time.Duration) {
	t.Helper()
	until := pgtest.Value[time.Time](t, pool, "SELECT lease_until FROM outbox.listeners WHERE running")
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE running AND lease_until > $1", until.Add(3*lease/2))
}

// TestListenerWithTheSameWorkerID: two processes that share an id by mistake still exclude each other.
func TestListenerWithTheSameWorkerID(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		runtimetest.PutAll(t, pool, "a1", "b1")
		h := runtimetest.NewNotes()
		h.Hold = make(chan struct{})
		cfg := listener.Config{LeaseDuration: runtimetest.CrashLease, PollInterval: 20 * time.Millisecond, WorkerID: runtimetest.TenantA}
		stop := runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, cfg, h))
		pgtest.Receive(t, h.Started, "a handler")
		stopSecond := runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, cfg, h))
		renewedPast(t, pool, runtimetest.CrashLease)
		require.Empty(t, h.Started)
		close(h.Hold)
		h.Await(t, 2)
		stop()
		stopSecond()
		require.Equal(t, []string{"a1", "b1"}, h.Names())
	})
}

// cursors hashes the state of listeners in the database. The hash is equal if nothing was changed.
func cursors(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, `SELECT md5(concat(
		(SELECT string_agg(l::text, E'\n' ORDER BY l.listener, l.shard) FROM outbox.listeners AS l),
		(SELECT string_agg(p::text, E'\n' ORDER BY p.no) FROM outbox.parked AS p),
		(SELECT string_agg(d::text, E'\n' ORDER BY d.no) FROM outbox.dead_letters AS d)))`)
}

// TestListenerStoppedPastItsLease freezes a process in its handler until another has handled the event, then resumes
// it. Its handler's context says that the lease is lost, and its result changes nothing. In transactional mode the row
// that it wrote blocks the other process until the server ends its transaction.
func TestListenerStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		runtimetest.MakeEffects(t, pool)
		pgtest.Execute(t, pool, "CREATE UNIQUE INDEX ON effects (event_id)")
		o := listenerOrders{Transactional: transactional, Lease: runtimetest.CrashLease, Poll: 50 * time.Millisecond, Attempts: 5, Hang: true}
		child := newListenerChild(t, pool, o)
		h := runtimetest.NewNotes()
		cfg := listener.Config{LeaseDuration: runtimetest.CrashLease, PollInterval: 50 * time.Millisecond}
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, cfg, h)
		cycles := runtimetest.Rounds(2)
		for cycle := range cycles {
			runtimetest.PutAll(t, pool, fmt.Sprintf("a%d", cycle+1))
			child.Await(t, runtimetest.Handling)
			child.Signal(t, suspend.Stop)
			stop := runtimetest.StartListener(t, l)
			h.Await(t, cycle+1)
			pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.listeners WHERE in_batch")
			stop()
			before := cursors(t, pool)
			child.Signal(t, suspend.Continue)
			require.Contains(t, child.Await(t, `"msg":"cancelled"`), `"cause":"lease lost"`)
			child.Tell(t, []string{"ok", "fail"}[cycle%2])
			child.Await(t, map[bool]string{false: "its lease was lost", true: "rolled back"}[transactional])
			require.Equal(t, before, cursors(t, pool))
		}
		if transactional {
			require.Equal(t, cycles, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects"))
		}
		require.NoError(t, child.Input.Close())
		child.Signal(t, syscall.SIGTERM)
		require.Empty(t, child.Await(t, "FAIL"))
		require.NoError(t, child.Wait())
		require.Equal(t, cycles, h.InOrder(t))
	})
}

// TestListenerPoisonKillsOnlyItself: one event of a hundred ends every process that handles it. It dies, and its
// neighbours are handled.
func TestListenerPoisonKillsOnlyItself(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		poisoned(t, listenerOrders{Transactional: transactional, Concurrency: map[bool]int{false: 4}[transactional]}, rand.IntN(100))
	})
}

// TestListenerPoisonInALaterBatch: the same for an event of a later batch of its lease.
func TestListenerPoisonInALaterBatch(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, size := range []int{4, 1} {
		t.Run(fmt.Sprint("batches of ", size), func(t *testing.T) {
			t.Parallel()
			poisoned(t, listenerOrders{BatchSize: size}, 7*size) // in the eighth batch, unless this machine is slow
		})
	}
}

// poisoned runs children that handle a hundred events. One of them, which has the given number of events before it,
// ends every process.
func poisoned(t *testing.T, o listenerOrders, before int) {
	t.Helper()
	pool := pgtest.Database(t)
	runtimetest.MakeEffects(t, pool)
	const attempts = 3
	transactional := o.Transactional
	o.Lease, o.Poll, o.Attempts = runtimetest.LongLease, 50*time.Millisecond, attempts
	c := runtimetest.NewCrowd("a", "b", "c", "d", "e", "f", "g", "h")
	c.Enqueue(t, pool, before)
	runtimetest.Put(t, pool, "poison", 1)
	c.Enqueue(t, pool, 99-before)
	processes := untilSettled(t, pool, o)
	require.Equal(t, attempts+2, processes, "one died without knowing why, then one for each attempt, the last finished")
	require.Equal(t, 99, pgtest.Value[int](t, pool, "SELECT count(DISTINCT event_id)::int FROM effects"))
	require.Equal(t, "poison 3", pgtest.Value[string](t, pool, "SELECT payload->>'key' || ' ' || attempts FROM outbox.dead_letters"))
	require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT max(attempt) FROM effects"), "no attempt of another event was counted")
	require.Zero(t, pgtest.Value[int](t, pool, runtimetest.Disorder))
	if transactional {
		require.Equal(t, 99, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects"))
	}
}

// TestListenerPoisonAmongParked: an event that was parked ends every process that tries it again. The heads of the
// other parked keys, with one attempt left, survive, and so do events that come meanwhile.
func TestListenerPoisonAmongParked(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		runtimetest.MakeEffects(t, pool)
		o := listenerOrders{
			Transactional: transactional, Lease: runtimetest.LongLease, Poll: 50 * time.Millisecond, Attempts: 2, ParkKeys: true, BatchSize: 5,
		}
		var ps []runtimetest.Said
		for i := range 15 {
			ps = append(ps, runtimetest.Said{Key: fmt.Sprintf("weak%02d", i), N: 1})
		}
		ps = slices.Insert(ps, rand.IntN(16), runtimetest.Said{Key: "bomb", N: 1})
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := runtimetest.SaidTopic.EnqueueMany(t.Context(), tx, ps)
			require.NoError(t, err)
		})
		n := 0
		processes := untilSettled(t, pool, o, func() {
			n++
			runtimetest.Put(t, pool, "late", n)
		})
		require.Equal(t, "bomb 2", pgtest.Value[string](t, pool, "SELECT string_agg(concat(payload->>'key', ' ', attempts), ', ') FROM outbox.dead_letters"))
		require.Equal(t, 15, pgtest.Value[int](t, pool, "SELECT count(DISTINCT event_id)::int FROM effects WHERE key LIKE 'weak%' AND attempt = 2"))
		require.Equal(t, n, pgtest.Value[int](t, pool, "SELECT count(DISTINCT event_id)::int FROM effects WHERE key = 'late' AND attempt = 1"))
		require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
		require.LessOrEqual(t, processes, 5)
	})
}

// untilSettled runs one child after the other until the listener has settled everything, and returns how many it took.
// Each child except the last ends by poison, and then calls are made.
func untilSettled(t testing.TB, pool *pgxpool.Pool, o listenerOrders, calls ...func()) (processes int) {
	t.Helper()
	const unsettled = `SELECT (SELECT count(*) FROM outbox.parked)
		+ (SELECT count(*) FROM outbox.log AS g WHERE NOT EXISTS (
			SELECT FROM outbox.listeners AS l WHERE g.seq <= greatest(l.high_seq, l.last_seq)))`
	ctx, cancel := context.WithTimeout(t.Context(), 2*pgtest.Patience)
	defer cancel()
	for {
		processes++
		c := newListenerChild(t, pool, o)
		ended := make(chan error, 1)
		go func() {
			for range c.Lines { // read to the end
			}
			ended <- c.Wait()
		}()
		look := time.NewTicker(20 * time.Millisecond)
		for alive := true; alive; {
			select {
			case err := <-ended:
				require.ErrorContains(t, err, "exit status 7")
				alive = false
			case <-look.C:
				var left int
				require.NoError(t, pool.QueryRow(ctx, unsettled).Scan(&left))
				if left == 0 {
					look.Stop()
					c.Signal(t, syscall.SIGTERM)
					require.NoError(t, <-ended)
					return processes
				}
			}
		}
		look.Stop()
		runtimetest.ChildIsGone(t, pool)
		expireLeases(t, pool)
		for _, call := range calls {
			call()
		}
	}
}
