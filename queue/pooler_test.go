package queue_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// noNotificationsText is what a dispatcher and a listener log if their connection receives no notifications.
const noNotificationsText = "doorbell: notifications do not arrive, as through a transaction pooler: polling instead. " +
	"Set ListenPool to a pool that connects to this database directly, or Wake to WakePoll"

// requireNoLock checks that no session holds a lock that outlives its transaction, such as the one that makes enqueues
// ring.
func requireNoLock(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	require.Zero(t, pgtest.Value[int](t, pool, `SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
		WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.mode = 'ExclusiveLock'`))
}

// falls runs a dispatcher and a listener through pool, which delivers no notifications. It requires that they log this
// once and poll, and that they hold no lock, neither while they run nor afterwards.
func falls(t *testing.T, direct, pool, listen *pgxpool.Pool) {
	topic := runtimetest.JobTopic("one")
	log := runtimetest.NewLogSpy()
	got := make(chan int64, 10)
	d := runtimetest.Dispatcher(t, pool, queue.Config{PollInterval: 50 * time.Millisecond, ListenPool: listen, Logger: log.Logger()},
		runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
			got <- d.Payload.N
			return nil
		}))
	h := runtimetest.NewNotes()
	ears := runtimetest.NewLogSpy()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{PollInterval: 50 * time.Millisecond, ListenPool: listen, Logger: ears.Logger()}, h)
	stop, stopListener := runtimetest.StartDispatcher(t, d), runtimetest.StartListener(t, l)
	log.Await(t, noNotificationsText)
	ears.Await(t, noNotificationsText)
	for n, j := range runtimetest.NumberedJobs(5) {
		requireNoLock(t, direct)
		runtimetest.EnqueueJobs(t, direct, topic, j)
		require.EqualValues(t, n, pgtest.Receive(t, got, "the event"))
		runtimetest.Put(t, direct, "a", n+1)
		h.Await(t, n+1)
	}
	require.NoError(t, stop())
	stopListener()
	requireNoLock(t, direct)
	require.Equal(t, 1, strings.Count(log.String(), "doorbell: "), "once: %s", log)
	require.Equal(t, 1, strings.Count(ears.String(), "doorbell: "), "once: %s", ears)
}

// TestBellThatHearsNothingFallsBackToPolling: LISTEN succeeds, and no notification arrives.
func TestBellThatHearsNothingFallsBackToPolling(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	t.Run("pool", func(t *testing.T) {
		t.Parallel()
		direct := pgtest.Database(t)
		falls(t, direct, runtimetest.Deaf(t, direct), nil)
	})
	t.Run("ListenPool", func(t *testing.T) {
		t.Parallel()
		direct := pgtest.Database(t)
		falls(t, direct, direct, runtimetest.Deaf(t, direct))
	})
	t.Run("ListenPool of another database", func(t *testing.T) {
		t.Parallel()
		direct := pgtest.Database(t)
		falls(t, direct, direct, pgtest.Database(t))
	})
}

// TestBellWithDirectListenPool: if the main pool delivers no notifications, they arrive through ListenPool.
func TestBellWithDirectListenPool(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	direct := pgtest.Database(t)
	cfg := runtimetest.SleeperConfig()
	cfg.ListenPool = direct
	topic := runtimetest.JobTopic("one")
	r := recipientOf(t, runtimetest.Deaf(t, direct), cfg, topic)
	require.NotZero(t, runtimetest.Holder(t, direct))
	runtimetest.EnqueueJobs(t, direct, topic, runtimetest.NumberedJobs(1)...)
	r.expect(t)
	require.NoError(t, r.stop())
}
