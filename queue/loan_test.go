package queue_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// recordClaimers makes the table claimers have the session of each claim. body runs before, in the trigger.
func recordClaimers(t testing.TB, pool *pgxpool.Pool, body string) {
	t.Helper()
	pgtest.Execute(t, pool, "CREATE TABLE public.claimers (no serial, pid integer)")
	pgtest.Execute(t, pool, "CREATE SEQUENCE public.claims")
	pgtest.Execute(t, pool, `CREATE FUNCTION public.claimed() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			`+body+`
			INSERT INTO public.claimers (pid) VALUES (pg_backend_pid());
			RETURN NEW;
		END $$`)
	pgtest.Execute(t, pool, `CREATE TRIGGER claimed BEFORE UPDATE ON outbox.queue FOR EACH ROW WHEN (NEW.claim_no > OLD.claim_no)
		EXECUTE FUNCTION public.claimed()`)
}

const latestClaimerSQL = "SELECT coalesce((SELECT pid FROM public.claimers ORDER BY no DESC LIMIT 1), 0)"

// TestRingIsFollowedOnTheConnectionThatHeardIt: its backend is awake. A connection of ListenPool is not used, because it
// may lead elsewhere.
func TestRingIsFollowedOnTheConnectionThatHeardIt(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, apart := range map[string]bool{"of the pool": false, "of ListenPool": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			recordClaimers(t, pool, "")
			cfg := runtimetest.SleeperConfig()
			if apart {
				cfg.ListenPool = pgtest.AnotherPool(t, pool)
			}
			topic := runtimetest.JobTopic("one")
			r := recipientOf(t, pool, cfg, topic)
			for range 5 {
				listens := runtimetest.Holder(t, pool)
				require.NotZero(t, listens)
				runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
				r.expect(t)
				require.Equal(t, !apart, pgtest.Count(t, pool, latestClaimerSQL) == listens)
				pgtest.Receive(t, r.watch.Idle, "sleep")
			}
			require.NoError(t, r.stop())
		})
	}
}

// TestConnectionIsCutBetweenRingAndClaim: the claim is made again on a connection of the pool.
func TestConnectionIsCutBetweenRingAndClaim(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	direct := pgtest.Database(t)
	pool, claims := runtimetest.NewGate(t, direct, "name: EventClaim")
	topic := runtimetest.JobTopic("one")
	r := recipientOf(t, pool, runtimetest.SleeperConfig(), topic)
	for range 5 {
		runtimetest.TakenOver(t, direct, 0)
		claims.OnPass(sync.OnceFunc(func() {
			pgtest.Execute(t, direct, "SELECT pg_terminate_backend($1, 10000)", runtimetest.Holder(t, direct))
		}))
		runtimetest.EnqueueJobs(t, direct, topic, runtimetest.NumberedJobs(1)...)
		r.expect(t)
	}
	require.NoError(t, r.stop())
	require.Equal(t, 5, pgtest.Count(t, direct, runtimetest.DeliveredSQL+" AND attempts = 1"))
}

// TestRingDuringAClaim: a ring that arrives while the connection is lent is not lost.
func TestRingDuringAClaim(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	direct := pgtest.Database(t)
	recordClaimers(t, direct, "PERFORM pg_advisory_xact_lock_shared(77);")
	topic := runtimetest.JobTopic("one")
	r := recipientOf(t, direct, runtimetest.SleeperConfig(), topic)
	for range 5 {
		hold, err := direct.Begin(t.Context())
		require.NoError(t, err)
		_, err = hold.Exec(t.Context(), "SELECT pg_advisory_xact_lock(77)")
		require.NoError(t, err)
		jobs := runtimetest.NumberedJobs(2)
		runtimetest.EnqueueJobs(t, direct, topic, jobs[0])
		pgtest.Settles(t, direct, 1, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted")
		runtimetest.EnqueueJobs(t, direct, topic, jobs[1])
		require.NoError(t, hold.Rollback(t.Context()))
		r.expect(t)
		r.expect(t)
		pgtest.Receive(t, r.watch.Idle, "sleep")
	}
	require.NoError(t, r.stop())
	require.Equal(t, 10, pgtest.Count(t, direct, runtimetest.DeliveredSQL+" AND attempts = 1"))
}

// TestClaimOnTheListeningConnectionFails: its transaction is rolled back there, and it goes on listening.
func TestClaimOnTheListeningConnectionFails(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	recordClaimers(t, pool, `IF nextval('public.claims') % 2 = 1 THEN
				RAISE EXCEPTION 'not now';
			END IF;`)
	topic := runtimetest.JobTopic("one")
	r := recipientOf(t, pool, runtimetest.SleeperConfig(), topic)
	listens := runtimetest.Holder(t, pool)
	for range 3 {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
		r.expect(t)
		pgtest.Receive(t, r.watch.Idle, "sleep")
	}
	require.Equal(t, listens, runtimetest.Holder(t, pool), "the same connection")
	require.NoError(t, r.stop())
}

// TestRingWhilePoolIsExhausted: a claim that follows a ring needs no connection of the pool.
func TestRingWhilePoolIsExhausted(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	direct := pgtest.Database(t)
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t, direct))
	require.NoError(t, err)
	cfg.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	topic := runtimetest.JobTopic("one")
	r := recipientOf(t, pool, runtimetest.SleeperConfig(), topic)
	for range 2 {
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
	}
	runtimetest.EnqueueJobs(t, direct, topic, runtimetest.NumberedJobs(1)...)
	r.expect(t)
	require.Zero(t, pgtest.Count(t, direct, runtimetest.DeliveredSQL), "there is no connection for the ack")
	for _, conn := range pool.AcquireAllIdle(context.Background()) {
		conn.Release()
	}
}

// TestStopDuringAClaimOnTheListeningConnection: the run ends only when the claim is over. What it has taken is released,
// and nobody holds the doorbell.
func TestStopDuringAClaimOnTheListeningConnection(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	direct := pgtest.Database(t)
	pool, claims := runtimetest.NewGate(t, direct, "name: EventClaimFresh")
	topic := runtimetest.JobTopic("one")
	r := recipientOf(t, pool, runtimetest.SleeperConfig(), topic)
	claiming, goOn := make(chan struct{}), make(chan struct{})
	claims.OnPass(sync.OnceFunc(func() {
		close(claiming)
		<-goOn
	}))
	runtimetest.EnqueueJobs(t, direct, topic, runtimetest.NumberedJobs(1)...)
	pgtest.Receive(t, claiming, "the claim")
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	select {
	case err := <-stopped:
		require.Fail(t, "it has not waited for the claim", "%v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(goOn)
	require.NoError(t, pgtest.Receive(t, stopped, "the end"))
	require.Empty(t, r.got)
	require.Zero(t, runtimetest.Holder(t, direct))
	require.Equal(t, 1, pgtest.Count(t, direct, "SELECT count(*) FROM outbox.queue WHERE locked_until IS NULL AND attempts = 0"))
}

// TestFewEventsKeepEnqueuesRinging: while little is found, the doorbell is not given up, and a transaction that was begun
// meanwhile and stays open keeps nobody from it.
func TestFewEventsKeepEnqueuesRinging(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	r := recipientOf(t, pool, runtimetest.SleeperConfig(), topic)
	listens := runtimetest.Holder(t, pool)
	open, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = topic.Enqueue(t.Context(), open, runtimetest.NumberedJobs(1)[0])
	require.NoError(t, err)
	for range 5 {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
		r.expect(t)
		pgtest.Receive(t, r.watch.Idle, "sleep")
		require.Equal(t, listens, runtimetest.Holder(t, pool))
		require.Empty(t, r.watch.Refused)
	}
	require.NoError(t, open.Commit(t.Context()))
	r.expect(t)
	require.NoError(t, r.stop())
}
