package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestDoorbellLockIsHandedOverOnShutdown: the sleeper that held the lock stops, and the other takes over.
func TestDoorbellLockIsHandedOverOnShutdown(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	a, b := runtimetest.JobTopic("a"), runtimetest.JobTopic("b")
	first := recipientOf(t, pool, runtimetest.SleeperConfig(), a)
	second := recipientOf(t, pool, runtimetest.SleeperConfig(), b)
	watching := runtimetest.Holder(t, pool)
	require.NotZero(t, watching)
	require.NoError(t, first.stop())
	runtimetest.TakenOver(t, pool, watching)
	runtimetest.EnqueueJobs(t, pool, b, runtimetest.NumberedJobs(1)...)
	second.expect(t)
	require.NoError(t, second.stop())
}

// engaged returns a handler that reports its event to r and then runs until the test ends.
func engaged(t testing.TB, r *recipient, topic outbox.Topic[runtimetest.Job]) queue.Handler {
	return runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		r.got <- d
		<-t.Context().Done()
		return nil
	})
}

// TestDoorbellLockIsHandedOverByPoll: the holder wakes by its own poll and stays busy. The other process was not woken,
// and has to take over.
func TestDoorbellLockIsHandedOverByPoll(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	a, b := runtimetest.JobTopic("a"), runtimetest.JobTopic("b")
	a = runtimetest.Altered(a, func(s *outbox.TopicSpec) { s.Silent = true })
	first := &recipient{got: make(chan outbox.Delivery[runtimetest.Job], 10)}
	handler := engaged(t, first, a)
	cfg := runtimetest.SleeperConfig()
	cfg.PollInterval, cfg.Concurrency, cfg.BatchSize = 100*time.Millisecond, 1, 1
	first.d = runtimetest.Dispatcher(t, pool, cfg, handler)
	first.watch = queue.Watch(first.d)
	runtimetest.StartDispatcher(t, first.d)
	pgtest.Receive(t, first.watch.Idle, "sleep")
	second := recipientOf(t, pool, runtimetest.SleeperConfig(), b)
	watching := runtimetest.Holder(t, pool)
	runtimetest.EnqueueJobs(t, pool, a, runtimetest.NumberedJobs(1)...)
	pgtest.Receive(t, first.got, "the silent event")
	runtimetest.TakenOver(t, pool, watching)
	runtimetest.EnqueueJobs(t, pool, b, runtimetest.NumberedJobs(1)...)
	second.expect(t)
	require.NoError(t, second.stop())
}

// TestDoorbellLockIsHandedOverAfterBell: both processes are woken. The other one finds nothing and goes back to sleep,
// relying on the holder, which checks late and is then busy.
func TestDoorbellLockIsHandedOverAfterBell(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	a, b := runtimetest.JobTopic("a"), runtimetest.JobTopic("b")
	first := &recipient{got: make(chan outbox.Delivery[runtimetest.Job], 10)}
	handler := engaged(t, first, a)
	slow, claims := runtimetest.NewGate(t, pool, "EventClaim")
	cfg := runtimetest.SleeperConfig()
	cfg.Concurrency, cfg.BatchSize = 1, 1
	first.d = runtimetest.Dispatcher(t, slow, cfg, handler)
	first.watch = queue.Watch(first.d)
	runtimetest.StartDispatcher(t, first.d)
	pgtest.Receive(t, first.watch.Idle, "sleep")
	second := recipientOf(t, pool, runtimetest.SleeperConfig(), b)
	watching := runtimetest.Holder(t, pool)

	for len(second.watch.Idle) > 0 {
		<-second.watch.Idle
	}
	claims.OnPass(func() { pgtest.Receive(t, second.watch.Idle, "the other's sleep") })
	runtimetest.EnqueueJobs(t, pool, a, runtimetest.NumberedJobs(1)...)
	pgtest.Receive(t, first.got, "the event")
	claims.OnPass(func() {})
	runtimetest.TakenOver(t, pool, watching)
	runtimetest.EnqueueJobs(t, pool, b, runtimetest.NumberedJobs(1)...)
	second.expect(t)
	require.NoError(t, second.stop())
}

// TestListenBackendKilled: the connection is made again and a check follows immediately, because what committed in
// between woke nobody.
func TestListenBackendKilled(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	r := recipientOf(t, pool, runtimetest.SleeperConfig(), topic)
	for range 10 {
		runtimetest.TakenOver(t, pool, 0)
		pgtest.Execute(t, pool, "SELECT pg_terminate_backend($1, 10000)", runtimetest.Holder(t, pool))
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
		r.expect(t)
	}
	require.NoError(t, r.stop())
}

// TestDoorbellLockIsRegainedByPoll: the process that held the lock dies without releasing it; a process that relied on
// it takes over at its next poll.
func TestDoorbellLockIsRegainedByPoll(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	key, _ := runtimetest.BellOf("jobs")
	dying, err := pgx.Connect(t.Context(), pgtest.URL(t, pool))
	require.NoError(t, err)
	_, err = dying.Exec(t.Context(), "SELECT pg_advisory_lock($1)", key)
	require.NoError(t, err)
	cfg := runtimetest.SleeperConfig()
	cfg.PollInterval = 500 * time.Millisecond
	r := recipientOf(t, pool, cfg, topic)
	require.EqualValues(t, dying.PgConn().PID(), runtimetest.Holder(t, pool))
	require.NoError(t, dying.Close(t.Context()))
	runtimetest.TakenOver(t, pool, int(dying.PgConn().PID()))
	require.NoError(t, r.stop())
	require.Zero(t, runtimetest.Holder(t, pool))
}

// TestBlackHoledListener: nothing gets through on the listening connection, and there is no reset. Polling continues,
// and the connection is closed and made again.
func TestBlackHoledListener(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	proxy := pgtest.NewProxy(t, pool)
	log := runtimetest.NewLogSpy()
	cfg := runtimetest.SleeperConfig()
	cfg.PollInterval, cfg.ListenPool, cfg.Logger = 200*time.Millisecond, proxy.Pool(t), log.Logger()
	r := recipientOf(t, pool, cfg, topic)
	proxy.Swallow()
	log.Await(t, `msg="doorbell: polling until it is back"`) // detected by a request, while there is nothing to do
	for range 3 {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
		r.expect(t)
	}
	proxy.Pass()
	pgtest.Eventually(t, func() bool { return runtimetest.Holder(t, pool) != 0 })
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	r.expect(t)
	require.NoError(t, r.stop())
}

// TestSilentTopicAllowsPrepareTransaction: PREPARE TRANSACTION refuses NOTIFY, so a topic with wake: none
// never sends it.
func TestSilentTopicAllowsPrepareTransaction(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	server := pgtest.Server(t, pgserver.Options{Settings: map[string]string{"max_prepared_transactions": "5"}})
	pool := pgtest.Pool(t, server.URL())
	_, err := migrate.Up(t.Context(), pool, pgtest.Schema)
	require.NoError(t, err)
	loud, silent := runtimetest.JobTopic("loud"), runtimetest.JobTopic("silent")
	silent = runtimetest.Altered(silent, func(s *outbox.TopicSpec) { s.Silent = true })
	cfg := runtimetest.SleeperConfig()
	cfg.PollInterval = 100 * time.Millisecond
	r := recipientOf(t, pool, cfg, loud, silent)

	prepare := func(topic outbox.Topic[runtimetest.Job], name string) error {
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = topic.Enqueue(t.Context(), tx, runtimetest.NumberedJobs(1)[0])
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "PREPARE TRANSACTION '"+name+"'")
		require.NoError(t, errIf(err != nil, tx.Rollback(t.Context())))
		return err
	}
	require.NoError(t, prepare(silent, "quiet"))
	require.ErrorContains(t, prepare(loud, "loud"), "NOTIFY")
	require.Empty(t, r.got)
	pgtest.Execute(t, pool, "COMMIT PREPARED 'quiet'")
	require.Equal(t, "silent", pgtest.Receive(t, r.got, "the event").Topic)
	require.NoError(t, r.stop())
}

func errIf(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

// TestWakePollNeverListens: WakePoll, for pools behind a transaction pooler, uses no LISTEN and no session lock.
func TestWakePollNeverListens(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	watched, listens := runtimetest.NewGate(t, pool, "LISTEN")
	locked, locks := runtimetest.NewGate(t, pool, "advisory")
	cfg := runtimetest.QuickConfig()
	cfg.Wake, cfg.ListenPool = outbox.WakePoll, locked
	r := recipientOf(t, watched, cfg, topic)
	for range 5 {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
		r.expect(t)
		pgtest.Receive(t, r.watch.Idle, "idleness")
		require.Zero(t, runtimetest.Holder(t, pool))
	}
	require.NoError(t, r.stop())
	require.Zero(t, listens.Passed.Load())
	require.Zero(t, locks.Passed.Load())
	require.Zero(t, locked.Stat().NewConnsCount())
}
