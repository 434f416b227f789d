package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgserver"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestDoorbellLockIsHandedOverOnShutdown: the sleeper that held the lock stops, and the other takes over.
func TestDoorbellLockIsHandedOverOnShutdown(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a, b := jobTopic("a"), jobTopic("b")
	first := recipientOf(t, pool, sleeper(), a)
	second := recipientOf(t, pool, sleeper(), b)
	watching := holder(t, pool)
	require.NotZero(t, watching)
	require.NoError(t, first.stop())
	takenOver(t, pool, watching)
	enqueueJobs(t, pool, b, numbered(1)...)
	second.expect(t)
	require.NoError(t, second.stop())
}

// engaged returns a handler that tells r of its event and then runs until the test ends.
func engaged(t testing.TB, r *recipient, topic outbox.Topic[job]) outbox.TopicHandler {
	return onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		r.got <- d
		<-t.Context().Done()
		return nil
	})
}

// TestDoorbellLockIsHandedOverByPoll: the holder wakes by its own poll and stays busy, so that the other, who was
// told by nobody, has to take over.
func TestDoorbellLockIsHandedOverByPoll(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a, b := jobTopic("a"), jobTopic("b")
	a = altered(a, func(s *outbox.TopicSpec) { s.Silent = true })
	first := &recipient{got: make(chan outbox.Delivery[job], 10)}
	handler := engaged(t, first, a)
	cfg := sleeper()
	cfg.PollInterval, cfg.Concurrency, cfg.BatchSize = 100*time.Millisecond, 1, 1
	first.d = dispatcher(t, pool, cfg, handler)
	first.watch = outbox.Watch(first.d)
	start(t, first.d)
	receive(t, first.watch.Idle, "sleep")
	second := recipientOf(t, pool, sleeper(), b)
	watching := holder(t, pool)
	enqueueJobs(t, pool, a, numbered(1)...)
	receive(t, first.got, "the silent event")
	takenOver(t, pool, watching)
	enqueueJobs(t, pool, b, numbered(1)...)
	second.expect(t)
	require.NoError(t, second.stop())
}

// TestDoorbellLockIsHandedOverAfterBell: both hear the bell; the other finds nothing and goes back to sleep relying
// on the holder, who is slow to look, then busy.
func TestDoorbellLockIsHandedOverAfterBell(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a, b := jobTopic("a"), jobTopic("b")
	first := &recipient{got: make(chan outbox.Delivery[job], 10)}
	handler := engaged(t, first, a)
	slow, claims := gated(t, pool, "EventClaim")
	cfg := sleeper()
	cfg.Concurrency, cfg.BatchSize = 1, 1
	first.d = dispatcher(t, slow, cfg, handler)
	first.watch = outbox.Watch(first.d)
	start(t, first.d)
	receive(t, first.watch.Idle, "sleep")
	second := recipientOf(t, pool, sleeper(), b)
	watching := holder(t, pool)

	for len(second.watch.Idle) > 0 {
		<-second.watch.Idle
	}
	claims.onPass(func() { receive(t, second.watch.Idle, "the other's sleep") })
	enqueueJobs(t, pool, a, numbered(1)...)
	receive(t, first.got, "the event")
	claims.onPass(func() {})
	takenOver(t, pool, watching)
	enqueueJobs(t, pool, b, numbered(1)...)
	second.expect(t)
	require.NoError(t, second.stop())
}

// TestListenBackendKilled: the connection is made again and a look follows at once, because what committed
// in between rang nobody.
func TestListenBackendKilled(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	r := recipientOf(t, pool, sleeper(), topic)
	for range 10 {
		takenOver(t, pool, 0)
		execute(t, pool, "SELECT pg_terminate_backend($1, 10000)", holder(t, pool))
		enqueueJobs(t, pool, topic, numbered(1)...)
		r.expect(t)
	}
	require.NoError(t, r.stop())
}

// TestDoorbellLockIsRegainedByPoll: the process that held the lock dies without a word; whoever relied on it takes
// over at its next poll.
func TestDoorbellLockIsRegainedByPoll(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	key, _ := bellOf("jobs")
	dying, err := pgx.Connect(t.Context(), pgtest.URL(t, pool))
	require.NoError(t, err)
	_, err = dying.Exec(t.Context(), "SELECT pg_advisory_lock($1)", key)
	require.NoError(t, err)
	cfg := sleeper()
	cfg.PollInterval = 500 * time.Millisecond
	r := recipientOf(t, pool, cfg, topic)
	require.EqualValues(t, dying.PgConn().PID(), holder(t, pool))
	require.NoError(t, dying.Close(t.Context()))
	takenOver(t, pool, int(dying.PgConn().PID()))
	require.NoError(t, r.stop())
	require.Zero(t, holder(t, pool))
}

// TestBlackHoledListener: nothing gets through on the listening connection and no reset tells; the poll goes
// on, and the connection is given up and made again.
func TestBlackHoledListener(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	proxy := newProxy(t, pool)
	log := newSpy()
	cfg := sleeper()
	cfg.PollInterval, cfg.ListenPool, cfg.Logger = 200*time.Millisecond, proxy.pool(t), log.logger()
	r := recipientOf(t, pool, cfg, topic)
	proxy.swallow()
	log.await(t, `msg="doorbell: polling until it is back"`) // found out by asking, with nothing to do
	for range 3 {
		enqueueJobs(t, pool, topic, numbered(1)...)
		r.expect(t)
	}
	proxy.pass()
	eventually(t, func() bool { return holder(t, pool) != 0 })
	enqueueJobs(t, pool, topic, numbered(1)...)
	r.expect(t)
	require.NoError(t, r.stop())
}

// TestSilentTopicAllowsPrepareTransaction: PREPARE TRANSACTION refuses NOTIFY, so a topic with wake: none
// never sends it.
func TestSilentTopicAllowsPrepareTransaction(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Options{Settings: map[string]string{"max_prepared_transactions": "5"}})
	pool := pgtest.Pool(t, server.URL())
	_, err := migrate.Up(t.Context(), pool, pgtest.Schema)
	require.NoError(t, err)
	loud, silent := jobTopic("loud"), jobTopic("silent")
	silent = altered(silent, func(s *outbox.TopicSpec) { s.Silent = true })
	cfg := sleeper()
	cfg.PollInterval = 100 * time.Millisecond
	r := recipientOf(t, pool, cfg, loud, silent)

	prepare := func(topic outbox.Topic[job], name string) error {
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = topic.Untyped().Enqueue(t.Context(), tx, numbered(1)[0])
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "PREPARE TRANSACTION '"+name+"'")
		require.NoError(t, errIf(err != nil, tx.Rollback(t.Context())))
		return err
	}
	require.NoError(t, prepare(silent, "quiet"))
	require.ErrorContains(t, prepare(loud, "loud"), "NOTIFY")
	require.Empty(t, r.got)
	execute(t, pool, "COMMIT PREPARED 'quiet'")
	require.Equal(t, "silent", receive(t, r.got, "the event").Topic)
	require.NoError(t, r.stop())
}

func errIf(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

// TestWakePollNeverListens: for pools behind a transaction pooler no LISTEN and no session lock.
func TestWakePollNeverListens(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	watched, listens := gated(t, pool, "LISTEN")
	locked, locks := gated(t, pool, "advisory")
	cfg := quick()
	cfg.Wake, cfg.ListenPool = outbox.WakePoll, locked
	r := recipientOf(t, watched, cfg, topic)
	for range 5 {
		enqueueJobs(t, pool, topic, numbered(1)...)
		r.expect(t)
		receive(t, r.watch.Idle, "idleness")
		require.Zero(t, holder(t, pool))
	}
	require.NoError(t, r.stop())
	require.Zero(t, listens.passed.Load())
	require.Zero(t, locks.passed.Load())
	require.Zero(t, locked.Stat().NewConnsCount())
}
