package queue_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// latin1 returns a pool on a migrated database that cannot keep most characters.
func latin1(t testing.TB) *pgxpool.Pool {
	t.Helper()
	admin := pgtest.Database(t)
	name := admin.Config().ConnConfig.Database + "_latin1"
	pgtest.Execute(t, admin, "CREATE DATABASE "+name+" ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	pgtest.Execute(t, admin, "ALTER DATABASE "+name+" SET client_encoding = 'UTF8'") // otherwise bytes would count as characters
	t.Cleanup(func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
	})
	url := strings.Replace(pgtest.URL(t, admin), admin.Config().ConnConfig.Database, name, 1)
	pool := pgtest.Pool(t, url)
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	require.Equal(t, "LATIN1", pgtest.Value[string](t, pool, "SELECT current_setting('server_encoding')"))
	return pool
}

// TestErrorsInAnotherEncoding: an error whose text the database cannot encode is kept, with escapes.
func TestErrorsInAnotherEncoding(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := latin1(t)
	const kept = `d\u00e9j\u00e0 vu: é \u65e5\u672c`
	topic := runtimetest.JobTopic("one")
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if d.Payload.N == 1 {
			return outbox.Permanent(errors.New(`d\u00e9j\u00e0 vu: é 日本`))
		}
		return nil
	})))
	pgtest.Settles(t, pool, 2, runtimetest.DeliveredSQL)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.event_status WHERE status = 'dead'")
	require.NoError(t, stop())
	require.Equal(t, kept, runtimetest.StateOf(t, pool, ids[1]).LastError)

	store, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	claimed, err := store.Claim(t.Context(), queue.ClaimConfig{MaxAttempts: 1})
	require.NoError(t, err)
	for _, want := range []queue.Outcome{queue.Applied, queue.Already} {
		outcomes, err := store.Nack(t.Context(), queue.Failure{Claimed: claimed[0], Err: errors.New("日本")})
		require.NoError(t, err)
		require.Equal(t, []queue.Outcome{want}, outcomes)
	}

	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := latin1(t)
		for _, park := range []bool{false, true} {
			h := runtimetest.NewNotes()
			tries := 0
			h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
				if d.Payload.Key != "b" {
					return nil
				}
				if tries++; tries == 1 {
					return errors.New("日本")
				}
				return outbox.Permanent(errors.New("日本"))
			}
			runtimetest.PutAll(t, pool, "a1", "b1", "c1")
			spec := listener.Spec{Name: map[bool]string{false: "blocks", true: "parks"}[park], ParkKeys: park, Retry: runtimetest.LateRetry}
			if transactional {
				runtimetest.MakeEffects(t, pool)
			}
			l := runtimetest.ListenAs(t, pool, transactional, spec, listener.Config{}, h)
			before := runtimetest.DrainAll(t, l)
			require.Equal(t, 1, before.Retried)
			runtimetest.RetryNow(t, pool)
			after := runtimetest.DrainAll(t, l)
			require.Equal(t, 1, after.Dead)
			require.Equal(t, `\u65e5\u672c`, pgtest.Value[string](t, pool, "SELECT error FROM outbox.dead_letters WHERE listener = $1", spec.Name))
			pgtest.Execute(t, pool, "DELETE FROM outbox.log")
		}
	})
}

// refuse makes PostgreSQL refuse the changes of the queue that satisfy when, of events whose secret is "refuse".
func refuse(t testing.TB, pool *pgxpool.Pool, when string) {
	t.Helper()
	pgtest.Execute(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (`+when+`) AND EXISTS (SELECT FROM outbox.events WHERE id = OLD.id AND payload->>'secret' = 'refuse') THEN
			RAISE EXCEPTION 'not this one';
		END IF;
		RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END; END $$`)
	pgtest.Execute(t, pool, "CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON outbox.queue FOR EACH ROW EXECUTE FUNCTION refuse()")
}

// TestRefusedFinalisationCostsNoOther: PostgreSQL refuses to settle some events, for example because of a user's
// trigger. The others are settled, and the dispatcher continues.
func TestRefusedFinalisationCostsNoOther(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := slowRetry()
	refuse(t, pool, "TG_OP = 'DELETE' OR NEW.locked_until IS NULL")
	jobs := runtimetest.NumberedJobs(60)
	for _, i := range []int{3, 4, 31, 59} { // of which three fail
		jobs[i].Secret = "refuse"
	}
	ids := runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	log := runtimetest.NewLogSpy()
	cfg := runtimetest.QuickConfig()
	cfg.Logger = log.Logger()
	var handled atomic.Int64
	all := make(chan struct{})
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if handled.Add(1) == 60 {
			close(all)
		}
		if d.Payload.N%2 == 1 && d.Payload.N < 60 {
			return errors.New("no")
		}
		return nil
	})))
	pgtest.Receive(t, all, "all handlers")
	pgtest.Settles(t, pool, 29, runtimetest.DeliveredSQL)
	pgtest.Settles(t, pool, 27, "SELECT count(*) FROM testing.events WHERE status = 'pending' AND attempts = 1 AND last_error = 'no'")
	for range 4 {
		line := log.Await(t, "is left to its lease")
		require.Contains(t, line, "not this one")
	}
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.New(), N: 100})
	pgtest.Settles(t, pool, 30, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	for _, i := range []int{3, 4, 31, 59} {
		require.Equal(t, "processing", runtimetest.StateOf(t, pool, ids[i]).Status)
	}
	require.Equal(t, 4, strings.Count(log.String(), "is left to its lease"))

	t.Run("drain", func(t *testing.T) {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.New(), N: 102}, runtimetest.Job{TenantID: uuid.New(), N: 104, Secret: "refuse"})
		report, err := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, queue.Report{Delivered: 1, Lost: 1}, report)
	})
}

// TestRefusedRenewalCostsNoOther: only the lease that cannot be renewed is lost.
func TestRefusedRenewalCostsNoOther(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	refuse(t, pool, "OLD.locked_until IS NOT NULL")
	jobs := runtimetest.NumberedJobs(5)
	jobs[2].Secret = "refuse"
	lost, open := make(chan int64, 5), make(chan struct{})
	cfg := shortLease()
	cfg.LeaseDuration *= 4 // a busy machine renews the other leases in time
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
		select {
		case <-ctx.Done():
			lost <- d.Payload.N
		case <-open:
		}
		return nil
	}))
	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	require.EqualValues(t, 2, pgtest.Receive(t, lost, "the lease that is refused"))
	for range 3 {
		pgtest.Receive(t, watch.Renewed, "a renewal")
	}
	require.Empty(t, lost)
	close(open)
	pgtest.Settles(t, pool, 4, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
}

// cutBefore is a tracer that cuts the connection before the first statement that contains part.
type cutBefore struct {
	part string
	done atomic.Bool
}

func (d *cutBefore) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, d.part) && d.done.CompareAndSwap(false, true) {
		_ = conn.PgConn().Conn().Close()
	}
	return ctx
}

func (d *cutBefore) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestClaimIsKeptWhenOutcomesFail: a pass settled and claimed, and then failed to read the status of a lost event. It
// keeps what it claimed, and reads the status again.
func TestClaimIsKeptWhenOutcomesFail(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, mode := range []string{"run", "drain"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := runtimetest.JobTopic("one")
			cfg, err := pgxpool.ParseConfig(pgtest.URL(t, pool))
			require.NoError(t, err)
			cutter := &cutBefore{part: "EventStatuses"}
			cfg.ConnConfig.Tracer = cutter
			own, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(own.Close)
			log := runtimetest.NewLogSpy()
			dc := runtimetest.QuickConfig()
			dc.Logger, dc.BatchSize, dc.Concurrency = log.Logger(), 2, 1
			d := runtimetest.Dispatcher(t, own, dc, runtimetest.OnJob(topic, func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
				if d.Payload.N == 0 { // it is lost, so that its outcome must be read
					if _, err := pool.Exec(ctx, stealSQL, d.ID, uuid.New()); err != nil {
						return err
					}
				}
				return nil
			}))
			runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(8)...)
			if mode == "drain" {
				report, err := d.Drain(t.Context())
				require.NoError(t, err)
				require.Equal(t, queue.Report{Delivered: 7, Lost: 1}, report)
			} else {
				stop := runtimetest.StartDispatcher(t, d)
				pgtest.Settles(t, pool, 7, runtimetest.DeliveredSQL+" AND attempts = 1")
				log.Await(t, "event was handled but lost to another claim")
				require.NoError(t, stop())
				require.Equal(t, 1, strings.Count(log.String(), "event was handled but lost to another claim"))
			}
			require.True(t, cutter.done.Load())
			require.Equal(t, 7, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1 AND claim_no = 1"), "nothing was left to its lease")
		})
	}
}
