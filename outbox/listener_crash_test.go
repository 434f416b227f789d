package outbox_test

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

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerKilledMidBatch kills a process with SIGKILL at random points of its leases, over and over, some of
// them in a change of the number of shards. What its handlers wrote in the transaction of the cursor is there once for each event.
func TestListenerKilledMidBatch(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		makeEffects(t, pool)
		o := listenerOrders{
			Transactional: transactional, Lease: longLease, Poll: 50 * time.Millisecond, BatchSize: 20, Attempts: 1000,
		}
		if !transactional {
			o.Concurrency = 4
		}
		c := newCrowd("a", "b", "c", "d", "e", "f", "g", "h")
		kills, each := rounds(20), 40
		for range kills {
			c.enqueue(t, pool, each)
			o.Shards = 1 + rand.IntN(3)
			child := newListenerChild(t, pool, o)
			for range 1 + rand.IntN(each) { // there are that many fresh ones at least
				child.await(t, handling)
			}
			child.kill()
			childIsGone(t, pool)
			expireLeases(t, pool)
		}
		h := newNotes()
		drainAll(t, listenAs(t, pool, transactional, outbox.ListenerSpec{Shards: 2, Retry: outbox.Retry{MaxAttempts: 1000}}, outbox.ListenerConfig{}, h))
		for _, d := range h.got {
			if !transactional {
				execute(t, pool, effectSQL, d.ID, d.Payload.Key, d.Payload.N, d.Attempt)
			}
		}
		total := kills * each
		require.Equal(t, total, value[int](t, pool, "SELECT count(DISTINCT event_id)::int FROM effects"))
		require.Zero(t, value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters"))
		require.Zero(t, value[int](t, pool, disorder))
		again := value[int](t, pool, "SELECT count(*)::int FROM effects") - total
		t.Logf("%d kills, %d events, %d effects repeated, at most %d attempts of one", kills, total, again,
			value[int](t, pool, "SELECT max(attempt) FROM effects"))
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
	execute(t, pool, `UPDATE outbox.listeners AS l SET lease_until = now()
		FROM (SELECT listener, shard FROM outbox.listeners ORDER BY listener, shard FOR UPDATE) AS o
		WHERE l.listener = o.listener AND l.shard = o.shard AND l.lease_by IS NOT NULL`)
}

// TestListenerIsTakenOver: while a process holds a listener and renews its lease another gets nothing; when it is killed
// the other goes on by itself when the lease has run out, though it has not looked for longer than patience otherwise.
func TestListenerIsTakenOver(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		makeEffects(t, pool)
		putAll(t, pool, "a1", "b1")
		const poll = 300 * time.Millisecond
		child := newListenerChild(t, pool, listenerOrders{Transactional: transactional, Lease: crashLease, Poll: poll, Attempts: 5, Hang: true})
		child.await(t, handling)
		h := newNotes()
		cfg := outbox.ListenerConfig{LeaseDuration: crashLease, PollInterval: poll}
		stop := startListener(t, listenAs(t, pool, transactional, outbox.ListenerSpec{}, cfg, h))
		renewedPast(t, pool, crashLease)
		require.Empty(t, h.names(), "held by the child")
		child.kill()
		killed := time.Now()
		h.await(t, 1)
		took := time.Since(killed)
		h.await(t, 2)
		stop()
		t.Logf("lease %s, poll %s: taken over %s after the kill", crashLease, poll, took)
		require.Equal(t, []string{"a1", "b1"}, h.names())
		require.Equal(t, 1, h.got[0].Attempt, "nobody knows that it was this one which was running")
	})
}

// renewedPast waits until the lease of a shard lasts longer than it did, by one and a half leases.
func renewedPast(t testing.TB, pool *pgxpool.Pool, lease time.Duration) {
	t.Helper()
	until := value[time.Time](t, pool, "SELECT lease_until FROM outbox.listeners WHERE running")
	settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE running AND lease_until > $1", until.Add(3*lease/2))
}

// TestListenerWithTheSameWorkerID: an id that two processes share by mistake does not make them one.
func TestListenerWithTheSameWorkerID(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		putAll(t, pool, "a1", "b1")
		h := newNotes()
		h.hold = make(chan struct{})
		cfg := outbox.ListenerConfig{LeaseDuration: crashLease, PollInterval: 20 * time.Millisecond, WorkerID: tenantA}
		stop := startListener(t, listenAs(t, pool, transactional, outbox.ListenerSpec{}, cfg, h))
		receive(t, h.started, "a handler")
		stopSecond := startListener(t, listenAs(t, pool, transactional, outbox.ListenerSpec{}, cfg, h))
		renewedPast(t, pool, crashLease)
		require.Empty(t, h.started)
		close(h.hold)
		h.await(t, 2)
		stop()
		stopSecond()
		require.Equal(t, []string{"a1", "b1"}, h.names())
	})
}

// cursors hashes what listeners have in the database: equal when nothing was changed.
func cursors(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return value[string](t, pool, `SELECT md5(concat(
		(SELECT string_agg(l::text, E'\n' ORDER BY l.listener, l.shard) FROM outbox.listeners AS l),
		(SELECT string_agg(p::text, E'\n' ORDER BY p.no) FROM outbox.parked AS p),
		(SELECT string_agg(d::text, E'\n' ORDER BY d.no) FROM outbox.dead_letters AS d)))`)
}

// TestListenerStoppedPastItsLease freezes a process in its handler until another has handled the event, then lets it go
// on: its handler learns that the lease is lost, and whatever it returns changes nothing. In transactional mode the row
// that it wrote is in the way of the other until the server ends its transaction.
func TestListenerStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		makeEffects(t, pool)
		execute(t, pool, "CREATE UNIQUE INDEX ON effects (event_id)")
		o := listenerOrders{Transactional: transactional, Lease: crashLease, Poll: 50 * time.Millisecond, Attempts: 5, Hang: true}
		child := newListenerChild(t, pool, o)
		h := newNotes()
		cfg := outbox.ListenerConfig{LeaseDuration: crashLease, PollInterval: 50 * time.Millisecond}
		l := listenAs(t, pool, transactional, outbox.ListenerSpec{}, cfg, h)
		cycles := rounds(2)
		for cycle := range cycles {
			putAll(t, pool, fmt.Sprintf("a%d", cycle+1))
			child.await(t, handling)
			child.signal(t, syscall.SIGSTOP)
			stop := startListener(t, l)
			h.await(t, cycle+1)
			settles(t, pool, 0, "SELECT count(*) FROM outbox.listeners WHERE in_batch")
			stop()
			before := cursors(t, pool)
			child.signal(t, syscall.SIGCONT)
			require.Contains(t, child.await(t, `"msg":"cancelled"`), `"cause":"lease lost"`)
			child.tell(t, []string{"ok", "fail"}[cycle%2])
			child.await(t, map[bool]string{false: "its lease was lost", true: "rolled back"}[transactional])
			require.Equal(t, before, cursors(t, pool))
		}
		if transactional {
			require.Equal(t, cycles, value[int](t, pool, "SELECT count(*)::int FROM effects"))
		}
		require.NoError(t, child.input.Close())
		child.signal(t, syscall.SIGTERM)
		require.Empty(t, child.await(t, "FAIL"))
		require.NoError(t, child.wait())
		require.Equal(t, cycles, h.inOrder(t))
	})
}

// TestListenerPoisonKillsOnlyItself: one event of a hundred ends every process that handles it. It dies, and its
// neighbours are handled.
func TestListenerPoisonKillsOnlyItself(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		poisoned(t, listenerOrders{Transactional: transactional, Concurrency: map[bool]int{false: 4}[transactional]}, rand.IntN(100))
	})
}

// TestListenerPoisonInALaterBatch: the same for an event of a batch that its lease went on with.
func TestListenerPoisonInALaterBatch(t *testing.T) {
	t.Parallel()
	for _, size := range []int{4, 1} {
		t.Run(fmt.Sprint("batches of ", size), func(t *testing.T) {
			t.Parallel()
			poisoned(t, listenerOrders{BatchSize: size}, 7*size) // in the eighth, unless this machine is slow
		})
	}
}

// poisoned has children handle a hundred events, of which one ends every process: that which has so many before it.
func poisoned(t *testing.T, o listenerOrders, before int) {
	t.Helper()
	pool := pgtest.Database(t)
	makeEffects(t, pool)
	const attempts = 3
	transactional := o.Transactional
	o.Lease, o.Poll, o.Attempts = longLease, 50*time.Millisecond, attempts
	c := newCrowd("a", "b", "c", "d", "e", "f", "g", "h")
	c.enqueue(t, pool, before)
	put1(t, pool, "poison", 1)
	c.enqueue(t, pool, 99-before)
	processes := untilSettled(t, pool, o)
	require.Equal(t, attempts+2, processes, "one died without knowing why, then one for each attempt, the last finished")
	require.Equal(t, 99, value[int](t, pool, "SELECT count(DISTINCT event_id)::int FROM effects"))
	require.Equal(t, "poison 3", value[string](t, pool, "SELECT payload->>'key' || ' ' || attempts FROM outbox.dead_letters"))
	require.Equal(t, 1, value[int](t, pool, "SELECT max(attempt) FROM effects"), "no attempt of another event was counted")
	require.Zero(t, value[int](t, pool, disorder))
	if transactional {
		require.Equal(t, 99, value[int](t, pool, "SELECT count(*)::int FROM effects"))
	}
}

// TestListenerPoisonAmongParked: an event that was parked ends every process that tries it again. The heads of the
// other parked keys, with one attempt left, survive, and so do events that come meanwhile.
func TestListenerPoisonAmongParked(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		makeEffects(t, pool)
		o := listenerOrders{
			Transactional: transactional, Lease: longLease, Poll: 50 * time.Millisecond, Attempts: 2, ParkKeys: true, BatchSize: 5,
		}
		var ps []said
		for i := range 15 {
			ps = append(ps, said{Key: fmt.Sprintf("weak%02d", i), N: 1})
		}
		ps = slices.Insert(ps, rand.IntN(16), said{Key: "bomb", N: 1})
		inTx(t, pool, func(tx pgx.Tx) {
			_, err := saidTopic.Untyped().EnqueueMany(t.Context(), tx, ps)
			require.NoError(t, err)
		})
		n := 0
		processes := untilSettled(t, pool, o, func() {
			n++
			put1(t, pool, "late", n)
		})
		require.Equal(t, "bomb 2", value[string](t, pool, "SELECT string_agg(concat(payload->>'key', ' ', attempts), ', ') FROM outbox.dead_letters"))
		require.Equal(t, 15, value[int](t, pool, "SELECT count(DISTINCT event_id)::int FROM effects WHERE key LIKE 'weak%' AND attempt = 2"))
		require.Equal(t, n, value[int](t, pool, "SELECT count(DISTINCT event_id)::int FROM effects WHERE key = 'late' AND attempt = 1"))
		require.Zero(t, value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
		require.LessOrEqual(t, processes, 5)
	})
}

// untilSettled runs one child after the other until the listener is done with everything, and returns how many it took.
// Each but the last ends by poison; then calls are made.
func untilSettled(t testing.TB, pool *pgxpool.Pool, o listenerOrders, calls ...func()) (processes int) {
	t.Helper()
	const unsettled = `SELECT (SELECT count(*) FROM outbox.parked)
		+ (SELECT count(*) FROM outbox.log AS g WHERE NOT EXISTS (
			SELECT FROM outbox.listeners AS l WHERE g.seq <= greatest(l.high_seq, l.last_seq)))`
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	for {
		processes++
		c := newListenerChild(t, pool, o)
		ended := make(chan error, 1)
		go func() {
			for range c.lines { // to the end
			}
			ended <- c.wait()
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
					c.signal(t, syscall.SIGTERM)
					require.NoError(t, <-ended)
					return processes
				}
			}
		}
		look.Stop()
		childIsGone(t, pool)
		expireLeases(t, pool)
		for _, call := range calls {
			call()
		}
	}
}
