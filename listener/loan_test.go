package listener_test

import (
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
)

// recordTakers makes the table takers have the session that has taken each lease.
func recordTakers(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Execute(t, pool, "CREATE TABLE public.takers (no serial, pid integer)")
	pgtest.Execute(t, pool, `CREATE FUNCTION public.taken() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO public.takers (pid) VALUES (pg_backend_pid());
			RETURN NEW;
		END $$`)
	pgtest.Execute(t, pool, `CREATE TRIGGER taken AFTER UPDATE ON outbox.listeners FOR EACH ROW
		WHEN (NEW.lease_no > OLD.lease_no) EXECUTE FUNCTION public.taken()`)
}

// TestListenerFollowsARingOnTheConnectionThatHeardIt: its backend is awake. A connection of ListenPool is not used,
// because it may lead elsewhere.
func TestListenerFollowsARingOnTheConnectionThatHeardIt(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, apart := range map[string]bool{"of the pool": false, "of ListenPool": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			cfg := dozing()
			if apart {
				cfg.ListenPool = pgtest.AnotherPool(t, pool)
			}
			h := runtimetest.NewNotes()
			l := runtimetest.ListenTo(t, pool, listener.Spec{}, cfg, h)
			watch := listener.Watch(l)
			stop := runtimetest.StartListener(t, l)
			pgtest.Receive(t, watch.Idle, "idleness")
			recordTakers(t, pool)
			runtimetest.TakenOver(t, pool, 0)
			listens := runtimetest.Holder(t, pool)
			for n := range 5 {
				runtimetest.Put(t, pool, "a", n+1)
				h.Await(t, n+1)
				pgtest.Receive(t, watch.Idle, "idleness")
			}
			taken := pgtest.Count(t, pool, "SELECT count(*) FROM public.takers WHERE pid = $1", listens)
			require.Equal(t, !apart, taken > 0)
			stop()
			require.Equal(t, 5, h.InOrder(t))
		})
	}
}

// TestListenerWhoseConnectionIsCutAfterARing: whichever statement finds out, what follows runs on connections of the
// pool.
func TestListenerWhoseConnectionIsCutAfterARing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, statement := range []string{"ListenerWait", "ListenerTakeLease"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			direct := pgtest.Database(t)
			pool, statements := runtimetest.NewGate(t, direct, "name: "+statement)
			h := runtimetest.NewNotes()
			l := runtimetest.ListenTo(t, pool, listener.Spec{}, dozing(), h)
			watch := listener.Watch(l)
			stop := runtimetest.StartListener(t, l)
			pgtest.Receive(t, watch.Idle, "idleness")
			for n := range 5 {
				runtimetest.TakenOver(t, direct, 0)
				statements.OnPass(sync.OnceFunc(func() {
					pgtest.Execute(t, direct, "SELECT pg_terminate_backend($1, 10000)", runtimetest.Holder(t, direct))
				}))
				runtimetest.Put(t, direct, "a", n+1)
				h.Await(t, n+1)
			}
			stop()
			require.Equal(t, 5, h.InOrder(t))
		})
	}
}

// TestListenerWakesWhilePoolIsExhausted: what follows a ring needs no connection of the pool.
func TestListenerWakesWhilePoolIsExhausted(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	direct := pgtest.Database(t)
	cfg, err := pgxpool.ParseConfig(pgtest.URL(t, direct))
	require.NoError(t, err)
	cfg.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, dozing(), h)
	watch := listener.Watch(l)
	runtimetest.StartListener(t, l)
	pgtest.Receive(t, watch.Idle, "idleness")
	for range 2 {
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
	}
	runtimetest.Put(t, direct, "a", 1)
	h.Await(t, 1)
}
