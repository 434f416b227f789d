package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// finished waits until the cursor of the only shard is past the whole log.
func finished(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for look := time.NewTicker(time.Millisecond); ; <-look.C {
		if value[bool](t, pool, `SELECT coalesce(bool_and(NOT in_batch AND NOT running AND high_seq >= (SELECT max(seq) FROM outbox.log)), false) FROM outbox.listeners`) {
			look.Stop()
			return
		}
		require.True(t, time.Now().Before(deadline), "the listener does not come to the end of the log")
	}
}

// soon is a retry that a test need not wait for.
func soon(attempts int) outbox.Retry {
	return outbox.Retry{MaxAttempts: attempts, BaseDelay: time.Millisecond, MaxDelay: 10 * time.Millisecond}
}

// TestListenerCutAtEveryByte cuts the connection at every n-th byte of what a listener says to the server in a lease, and
// of what the server says. The listener goes on by itself: a leased one has handled each event once, since it knows its
// leases again, and of a transactional one each effect is there once. Nothing is charged for the cut, but in the middle
// of a handler, whose error it is then.
func TestListenerCutAtEveryByte(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		const parts = 4 // at once, since most of it is waiting
		for part := range parts {
			t.Run(fmt.Sprintf("part %d", part), func(t *testing.T) {
				t.Parallel()
				cutListener(t, transactional, part*everyNth, parts*everyNth)
			})
		}
	})
}

func cutListener(t *testing.T, transactional bool, first, step int) {
	t.Helper()
	pool := pgtest.Database(t)
	makeEffects(t, pool)
	cut, scissors := cuttable(t, pool)
	scissors.once = true
	h := newNotes()
	// Only the doorbell wakes it, which is not cut.
	cfg := outbox.ListenerConfig{LeaseDuration: time.Hour, PollInterval: 20 * time.Minute, ListenPool: pool}
	l := listenAs(t, pool, transactional, outbox.ListenerSpec{Retry: soon(3)}, cfg, h)
	outbox.ThroughPool(l, cut)
	outbox.LimitPauses(l, time.Millisecond)
	watch := outbox.WatchListener(l)
	stop := startListener(t, l)
	receive(t, watch.Idle, "idleness")
	n, cuts := 0, 0
	handle := func() {
		n++
		put1(t, pool, "a", n)
		finished(t, pool)
		receive(t, watch.Idle, "idleness")
	}
	for _, replies := range []bool{false, true} {
		for k := first; ; k += step {
			handle() // warms up the connection
			scissors.arm(replies, k)
			handle()
			if !scissors.disarm() {
				break
			}
			cuts++
		}
	}
	stop()
	require.Greater(t, cuts, 20)
	require.Zero(t, value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters"))
	again := 0
	for _, d := range h.got {
		if d.Attempt > 1 {
			again++
		}
	}
	t.Logf("%d cuts, %d events, handled %d times, %d of them not in the first attempt", cuts, n, len(h.got), again)
	if !transactional {
		require.Equal(t, n, h.inOrder(t))
		require.Zero(t, again)
		return
	}
	require.Equal(t, n, value[int](t, pool, "SELECT count(*)::int FROM effects"))
	require.Equal(t, n, value[int](t, pool, "SELECT count(DISTINCT n)::int FROM effects"))
	require.Zero(t, value[int](t, pool, disorder))
	require.Zero(t, value[int](t, pool, "SELECT count(*)::int FROM effects WHERE attempt > 2"))
}

// TestListenerBackendKilledInAnAdvance: the end of a lease is stuck behind a lock, so that it is known to be under way,
// when its session is killed. The listener ends the lease again, or handles its event again if that was undone with it.
func TestListenerBackendKilledInAnAdvance(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := newNotes()
		h.hold = make(chan struct{})
		l := listenAs(t, pool, transactional, outbox.ListenerSpec{Retry: soon(2)}, outbox.ListenerConfig{}, h)
		stop := startListener(t, l)
		putAll(t, pool, "a1")
		receive(t, h.started, "the handler")
		tx := begin(t, pool, pgx.TxOptions{})
		_, err := tx.Exec(t.Context(), "SELECT FROM outbox.listeners FOR UPDATE")
		require.NoError(t, err)
		close(h.hold)
		awaitBlocked(t, pool, 1)
		killed := value[int](t, pool, `WITH stuck AS MATERIALIZED (
			SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')
			SELECT count(pg_terminate_backend(pid)) FROM stuck`)
		require.Equal(t, 1, killed)
		require.NoError(t, tx.Rollback(t.Context()))
		finished(t, pool)
		stop()
		for _, d := range h.got {
			require.Equal(t, 1, d.Attempt, "nothing was charged")
		}
		if transactional {
			require.Equal(t, []string{"a1", "a1"}, h.names())
			require.Equal(t, 1, value[int](t, pool, "SELECT count(*)::int FROM effects"))
		} else {
			require.Equal(t, []string{"a1"}, h.names())
		}
		require.Zero(t, value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters"))
	})
}
