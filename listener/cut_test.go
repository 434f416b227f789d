package listener_test

import (
	"fmt"
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

// finished waits until the cursor of the only shard has passed the whole log.
func finished(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	deadline := time.Now().Add(pgtest.Patience)
	for look := time.NewTicker(time.Millisecond); ; <-look.C {
		if pgtest.Value[bool](t, pool, `SELECT coalesce(bool_and(NOT in_batch AND NOT running AND high_seq >= (SELECT max(seq) FROM outbox.log)), false) FROM outbox.listeners`) {
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

// TestListenerCutAtEveryByte cuts the connection at every n-th byte that a listener sends to the server in a lease, and
// that the server sends. The listener continues by itself. A leased listener has handled each event once, because it
// recognises its leases. Of a transactional one each effect exists once. The cut costs no attempt, except during a
// handler, which then fails with its error.
func TestListenerCutAtEveryByte(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		const parts = 4 // in parallel, because most of the time is waiting
		for part := range parts {
			t.Run(fmt.Sprintf("part %d", part), func(t *testing.T) {
				t.Parallel()
				cutListener(t, transactional, part*pgtest.EveryNth, parts*pgtest.EveryNth)
			})
		}
	})
}

func cutListener(t *testing.T, transactional bool, first, step int) {
	t.Helper()
	pool := pgtest.Database(t)
	runtimetest.MakeEffects(t, pool)
	cut, scissors := pgtest.Cuttable(t, pool)
	scissors.Once = true
	h := runtimetest.NewNotes()
	// Only the doorbell, which is not cut, wakes the listener.
	cfg := listener.Config{LeaseDuration: time.Hour, PollInterval: 20 * time.Minute, ListenPool: pool}
	l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{Retry: soon(3)}, cfg, h)
	listener.ThroughPool(l, cut)
	listener.LimitPauses(l, time.Millisecond)
	watch := listener.Watch(l)
	stop := runtimetest.StartListener(t, l)
	pgtest.Receive(t, watch.Idle, "idleness")
	n, cuts := 0, 0
	handle := func() {
		n++
		runtimetest.Put(t, pool, "a", n)
		finished(t, pool)
		pgtest.Receive(t, watch.Idle, "idleness")
	}
	for _, replies := range []bool{false, true} {
		for k := first; ; k += step {
			handle() // warms up the connection
			scissors.Arm(replies, k)
			handle()
			if !scissors.Disarm() {
				break
			}
			cuts++
		}
	}
	stop()
	require.Greater(t, cuts, 10)
	require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters"))
	again := 0
	for _, d := range h.Got {
		if d.Attempt > 1 {
			again++
		}
	}
	t.Logf("%d cuts, %d events, handled %d times, %d of them not in the first attempt", cuts, n, len(h.Got), again)
	if !transactional {
		require.Equal(t, n, h.InOrder(t))
		require.Zero(t, again)
		return
	}
	require.Equal(t, n, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects"))
	require.Equal(t, n, pgtest.Value[int](t, pool, "SELECT count(DISTINCT n)::int FROM effects"))
	require.Zero(t, pgtest.Value[int](t, pool, runtimetest.Disorder))
	require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects WHERE attempt > 2"))
}

// TestListenerBackendKilledInAnAdvance: the session is killed while the end of a lease waits for a lock, so that it is
// known to be under way. The listener ends the lease again, or handles its event again if its transaction was rolled
// back.
func TestListenerBackendKilledInAnAdvance(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		h.Hold = make(chan struct{})
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{Retry: soon(2)}, listener.Config{}, h)
		stop := runtimetest.StartListener(t, l)
		runtimetest.PutAll(t, pool, "a1")
		pgtest.Receive(t, h.Started, "the handler")
		tx := pgtest.Begin(t, pool, pgx.TxOptions{})
		_, err := tx.Exec(t.Context(), "SELECT FROM outbox.listeners FOR UPDATE")
		require.NoError(t, err)
		close(h.Hold)
		pgtest.AwaitBlocked(t, pool, 1)
		killed := pgtest.Value[int](t, pool, `WITH stuck AS MATERIALIZED (
			SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')
			SELECT count(pg_terminate_backend(pid)) FROM stuck`)
		require.Equal(t, 1, killed)
		require.NoError(t, tx.Rollback(t.Context()))
		finished(t, pool)
		stop()
		for _, d := range h.Got {
			require.Equal(t, 1, d.Attempt, "nothing was charged")
		}
		if transactional {
			require.Equal(t, []string{"a1", "a1"}, h.Names())
			require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM effects"))
		} else {
			require.Equal(t, []string{"a1"}, h.Names())
		}
		require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters"))
	})
}
