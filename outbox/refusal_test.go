package outbox_test

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

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// latin1 returns a pool on a migrated database that cannot keep most characters.
func latin1(t testing.TB) *pgxpool.Pool {
	t.Helper()
	admin := pgtest.Database(t)
	name := admin.Config().ConnConfig.Database + "_latin1"
	execute(t, admin, "CREATE DATABASE "+name+" ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
	execute(t, admin, "ALTER DATABASE "+name+" SET client_encoding = 'UTF8'") // else bytes are taken for characters
	t.Cleanup(func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
	})
	url := strings.Replace(pgtest.URL(t, admin), admin.Config().ConnConfig.Database, name, 1)
	pool := pgtest.Pool(t, url)
	_, err := migrate.Up(t.Context(), pool, "outbox")
	require.NoError(t, err)
	require.Equal(t, "LATIN1", value[string](t, pool, "SELECT current_setting('server_encoding')"))
	return pool
}

// TestErrorsInAnotherEncoding: an error whose text the database cannot encode is kept, with escapes.
func TestErrorsInAnotherEncoding(t *testing.T) {
	t.Parallel()
	pool := latin1(t)
	const kept = `d\u00e9j\u00e0 vu: é \u65e5\u672c`
	topic := jobTopic("one")
	ids := enqueueJobs(t, pool, topic, numbered(3)...)
	stop := start(t, dispatcher(t, pool, quick(), onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		if d.Payload.N == 1 {
			return outbox.Permanent(errors.New(`d\u00e9j\u00e0 vu: é 日本`))
		}
		return nil
	})))
	settles(t, pool, 2, delivered)
	settles(t, pool, 1, "SELECT count(*) FROM outbox.events WHERE status = 'dead'")
	require.NoError(t, stop())
	require.Equal(t, kept, stateOf(t, pool, ids[1]).LastError)

	store, err := outbox.NewStore(pool, outbox.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	enqueueJobs(t, pool, topic, numbered(1)...)
	claimed, err := store.Claim(t.Context(), outbox.ClaimConfig{MaxAttempts: 1})
	require.NoError(t, err)
	for _, want := range []outbox.Outcome{outbox.Applied, outbox.Already} {
		outcomes, err := store.Nack(t.Context(), outbox.Failure{Claimed: claimed[0], Err: errors.New("日本")})
		require.NoError(t, err)
		require.Equal(t, []outbox.Outcome{want}, outcomes)
	}

	bothModes(t, func(t *testing.T, transactional bool) {
		pool := latin1(t)
		for _, park := range []bool{false, true} {
			h := newNotes()
			tries := 0
			h.fail = func(d outbox.Delivery[said]) error {
				if d.Payload.Key != "b" {
					return nil
				}
				if tries++; tries == 1 {
					return errors.New("日本")
				}
				return outbox.Permanent(errors.New("日本"))
			}
			putAll(t, pool, "a1", "b1", "c1")
			spec := outbox.ListenerSpec{Name: map[bool]string{false: "blocks", true: "parks"}[park], ParkKeys: park, Retry: late}
			if transactional {
				makeEffects(t, pool)
			}
			l := listenAs(t, pool, transactional, spec, outbox.ListenerConfig{}, h)
			before := drainAll(t, l)
			require.Equal(t, 1, before.Retried)
			retryNow(t, pool)
			after := drainAll(t, l)
			require.Equal(t, 1, after.Dead)
			require.Equal(t, `\u65e5\u672c`, value[string](t, pool, "SELECT error FROM outbox.dead_letters WHERE listener = $1", spec.Name))
			execute(t, pool, "DELETE FROM outbox.log")
		}
	})
}

// TestRefusedFinalisationCostsNoOther: PostgreSQL refuses to have some events settled, as a trigger of the user's can have it.
// The others are, and the dispatcher goes on.
func TestRefusedFinalisationCostsNoOther(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := slowRetry()
	execute(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.payload->>'secret' = 'refuse' AND NEW.status <> 'processing' THEN RAISE EXCEPTION 'not this one'; END IF;
		RETURN NEW; END $$`)
	execute(t, pool, "CREATE TRIGGER refuse BEFORE UPDATE ON outbox.events FOR EACH ROW EXECUTE FUNCTION refuse()")
	jobs := numbered(60)
	for _, i := range []int{3, 4, 31, 59} { // of which two fail
		jobs[i].Secret = "refuse"
	}
	ids := enqueueJobs(t, pool, topic, jobs...)
	log := newSpy()
	cfg := quick()
	cfg.Logger = log.logger()
	var handled atomic.Int64
	all := make(chan struct{})
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		if handled.Add(1) == 60 {
			close(all)
		}
		if d.Payload.N%2 == 1 && d.Payload.N < 60 {
			return errors.New("no")
		}
		return nil
	})))
	receive(t, all, "all handlers")
	settles(t, pool, 29, delivered)
	settles(t, pool, 27, "SELECT count(*) FROM outbox.events WHERE status = 'pending' AND attempts = 1 AND last_error = 'no'")
	for range 4 {
		line := log.await(t, "is left to its lease")
		require.Contains(t, line, "not this one")
	}
	enqueueJobs(t, pool, topic, job{TenantID: uuid.New(), N: 100})
	settles(t, pool, 30, delivered)
	require.NoError(t, stop())
	for _, i := range []int{3, 4, 31, 59} {
		require.Equal(t, "processing", stateOf(t, pool, ids[i]).Status)
	}
	require.Equal(t, 4, strings.Count(log.String(), "is left to its lease"))

	t.Run("drain", func(t *testing.T) {
		enqueueJobs(t, pool, topic, job{TenantID: uuid.New(), N: 102}, job{TenantID: uuid.New(), N: 104, Secret: "refuse"})
		report, err := dispatcher(t, pool, quick(), onJob(topic, succeed)).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, outbox.DrainReport{Delivered: 1, Lost: 1}, report)
	})
}

// TestRefusedRenewalCostsNoOther: one lease that cannot be renewed is lost alone.
func TestRefusedRenewalCostsNoOther(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	execute(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.payload->>'secret' = 'refuse' AND OLD.status = 'processing' THEN RAISE EXCEPTION 'not this one'; END IF;
		RETURN NEW; END $$`)
	execute(t, pool, "CREATE TRIGGER refuse BEFORE UPDATE ON outbox.events FOR EACH ROW EXECUTE FUNCTION refuse()")
	jobs := numbered(5)
	jobs[2].Secret = "refuse"
	lost, open := make(chan int64, 5), make(chan struct{})
	d := dispatcher(t, pool, shortLease(), onJob(topic, func(ctx context.Context, d outbox.Delivery[job]) error {
		select {
		case <-ctx.Done():
			lost <- d.Payload.N
		case <-open:
		}
		return nil
	}))
	watch := outbox.Watch(d)
	stop := start(t, d)
	enqueueJobs(t, pool, topic, jobs...)
	require.EqualValues(t, 2, receive(t, lost, "the lease that is refused"))
	for range 3 {
		receive(t, watch.Renewed, "a renewal")
	}
	require.Empty(t, lost)
	close(open)
	settles(t, pool, 4, delivered)
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

// TestClaimIsKeptWhenOutcomesFail: a pass that settled and claimed, and then could not ask what became of an event that was
// lost, keeps what it claimed, and asks again.
func TestClaimIsKeptWhenOutcomesFail(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"run", "drain"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := jobTopic("one")
			cfg, err := pgxpool.ParseConfig(pgtest.URL(t, pool))
			require.NoError(t, err)
			cutter := &cutBefore{part: "EventStatuses"}
			cfg.ConnConfig.Tracer = cutter
			own, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(own.Close)
			log := newSpy()
			dc := quick()
			dc.Logger, dc.BatchSize, dc.Concurrency = log.logger(), 2, 1
			d := dispatcher(t, own, dc, onJob(topic, func(ctx context.Context, d outbox.Delivery[job]) error {
				if d.Payload.N == 0 { // is lost, so that it needs a outcome
					if _, err := pool.Exec(ctx, stealSQL, d.ID, uuid.New()); err != nil {
						return err
					}
				}
				return nil
			}))
			enqueueJobs(t, pool, topic, numbered(8)...)
			if mode == "drain" {
				report, err := d.Drain(t.Context())
				require.NoError(t, err)
				require.Equal(t, outbox.DrainReport{Delivered: 7, Lost: 1}, report)
			} else {
				stop := start(t, d)
				settles(t, pool, 7, delivered+" AND attempts = 1")
				log.await(t, "event was handled but lost to another claim")
				require.NoError(t, stop())
				require.Equal(t, 1, strings.Count(log.String(), "event was handled but lost to another claim"))
			}
			require.True(t, cutter.done.Load())
			require.Equal(t, 7, count(t, pool, delivered+" AND attempts = 1 AND claim_no = 1"), "nothing was left to its lease")
		})
	}
}
