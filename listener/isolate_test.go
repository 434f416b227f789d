package listener_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
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

// behind counts events that no cursor has passed yet.
const behind = "SELECT count(*)::int FROM outbox.log AS g WHERE g.seq > (SELECT max(greatest(l.high_seq, l.last_seq)) FROM outbox.listeners AS l)"

// stream enqueues events until stop, so that some hundred are always waiting.
func stream(t *testing.T, pool *pgxpool.Pool, c *runtimetest.Crowd) (stop func()) {
	t.Helper()
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			case <-time.After(5 * time.Millisecond):
			}
			var waiting *int
			if err := pool.QueryRow(context.Background(), behind).Scan(&waiting); err == nil && (waiting == nil || *waiting < 300) {
				c.Enqueue(t, pool, 50)
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(over)
		<-ended
	})
	t.Cleanup(stop)
	return stop
}

// crashes runs one child after the other until an event is dead, and returns how many children an event has killed.
func crashes(t *testing.T, pool *pgxpool.Pool, o listenerOrders) (n int) {
	t.Helper()
	for {
		c := newListenerChild(t, pool, o)
		ended := make(chan error, 1)
		go func() {
			for range c.Lines { // to the end
			}
			ended <- c.Wait()
		}()
		look := time.NewTicker(20 * time.Millisecond)
		for alive := true; alive; {
			select {
			case err := <-ended:
				require.ErrorContains(t, err, "exit status 7")
				alive = false
			case <-look.C:
				if pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters") > 0 {
					look.Stop()
					require.NoError(t, c.Cmd.Process.Signal(syscall.SIGTERM))
					require.NoError(t, <-ended)
					return n
				}
			}
		}
		look.Stop()
		n++
		require.Less(t, n, 10, "the poison is not found")
		expireLeases(t, pool)
	}
}

// TestListenerPoisonInAStream: an event that ends every process which handles it, in the log or parked, dies after its
// attempts, although other events arrive meanwhile. One crash happens before the event is known, and no crash is
// charged to another event.
func TestListenerPoisonInAStream(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
				pool := pgtest.Database(t)
				runtimetest.MakeEffects(t, pool)
				c := crowded()
				o := listenerOrders{
					Transactional: transactional, Lease: time.Minute, Poll: 50 * time.Millisecond, Attempts: 3, ParkKeys: park, BatchSize: 20,
				}
				key, want := "poison", 4 // one before the event is known, then one per attempt
				if park {
					key, want = "bomb", 3 // the first attempt fails, and it is parked
				}
				c.Enqueue(t, pool, 300)
				runtimetest.Put(t, pool, key, 1)
				c.Enqueue(t, pool, 300)
				stop := stream(t, pool, c)
				require.Equal(t, want, crashes(t, pool, o))
				stop()
				require.Equal(t, key+" 3", pgtest.Value[string](t, pool, "SELECT string_agg(concat(payload->>'key', ' ', attempts), ', ') FROM outbox.dead_letters"))
				drained := runtimetest.NewNotes()
				runtimetest.DrainAll(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{ParkKeys: park}, listener.Config{}, drained))
				for _, d := range drained.Got {
					require.Equal(t, 1, d.Attempt)
				}
				require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT max(attempt) FROM effects"), "no attempt of another event was counted")
				require.Zero(t, pgtest.Value[int](t, pool, runtimetest.Disorder))
				require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
			})
		})
	}
}

// TestListenerHandlesManyParkedEventsOneByOne: all parked keys are due and have followers, and one follower ends every
// process. Only the keys that were taken with it are handled one by one.
func TestListenerHandlesManyParkedEventsOneByOne(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	runtimetest.MakeEffects(t, pool)
	var ps []runtimetest.Said
	for i := range 100 {
		key := fmt.Sprintf("key%02d", i)
		if i == 10 {
			ps = append(ps, runtimetest.Said{Key: key, N: 1}, runtimetest.Said{Key: key, N: 2}, runtimetest.Said{Key: key, N: -1}, runtimetest.Said{Key: key, N: 3})
			continue
		}
		ps = append(ps, runtimetest.Said{Key: key, N: 1}, runtimetest.Said{Key: key, N: 2}, runtimetest.Said{Key: key, N: 3})
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := runtimetest.SaidTopic.EnqueueMany(t.Context(), tx, ps)
		require.NoError(t, err)
	})
	h := runtimetest.NewNotes()
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error { return runtimetest.ErrHandler }
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true}, listener.Config{}, h))
	runtimetest.RetryNow(t, pool)
	o := listenerOrders{Lease: time.Minute, Poll: 50 * time.Millisecond, Attempts: 3, ParkKeys: true}
	before := pgtest.Value[int](t, pool, "SELECT lease_no::int FROM outbox.listeners")
	require.Equal(t, 4, crashes(t, pool, o))
	leases := pgtest.Value[int](t, pool, "SELECT lease_no::int FROM outbox.listeners") - before
	require.Less(t, leases, 100, "those of twenty keys are taken one by one, not those of a hundred")
	require.Equal(t, "key10 -1 3", pgtest.Value[string](t, pool, "SELECT string_agg(concat(payload->>'key', ' ', payload->>'n', ' ', attempts), ', ') FROM outbox.dead_letters"))
}

// TestListenerSearchesBrokenTransactionsByHalves: an event that breaks a transaction at its commit, in the log or
// parked, is found in a few tries although other events keep arriving. From then on it is tried alone.
func TestListenerSearchesBrokenTransactionsByHalves(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			pgtest.Execute(t, pool, "CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
			pgtest.Execute(t, pool, "INSERT INTO deferred VALUES (1)")
			log := runtimetest.NewLogSpy()
			retry := soon(5)
			l := listenTxFunc(t, pool, listener.Spec{Retry: retry, ParkKeys: park}, listener.Config{Logger: log.Logger()},
				func(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
					switch {
					case d.Payload.Key != "x" || d.Payload.N != 1:
					case park && d.Attempt == 1:
						return runtimetest.ErrHandler
					default:
						if _, err := tx.Exec(ctx, "INSERT INTO deferred VALUES (1)"); err != nil {
							return err
						}
					}
					return effect(ctx, tx, d)
				})
			c := crowded()
			c.Enqueue(t, pool, 90)
			runtimetest.Put(t, pool, "x", 1)
			runtimetest.Put(t, pool, "x", 2)
			c.Enqueue(t, pool, 210)
			end := stream(t, pool, c)
			stop := runtimetest.StartListener(t, l)
			pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.dead_letters")
			end()
			finished(t, pool)
			pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.parked")
			stop()
			require.Equal(t, "x 1 5", pgtest.Value[string](t, pool, "SELECT string_agg(concat(payload->>'key', ' ', payload->>'n', ' ', attempts), ', ') FROM outbox.dead_letters"))
			broken := strings.Count(log.String(), "events are rolled back")
			require.LessOrEqual(t, broken, 8, "log2 of a lease, once: %s", log)
			require.NotZero(t, broken)
			require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT max(attempt) FROM effects"))
			require.Zero(t, pgtest.Value[int](t, pool, runtimetest.Disorder))
			total := pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log")
			require.Equal(t, total-1, pgtest.Count(t, pool, "SELECT count(*) FROM effects"))
			require.Equal(t, total-1, pgtest.Count(t, pool, "SELECT count(DISTINCT event_id) FROM effects"))
		})
	}
}

// TestListenerAttemptsBelongToAnEvent: a listener is blocked by an event, after a failure or because its process died,
// and no longer reads the event's topic when it restarts. The next event has its own attempts.
func TestListenerAttemptsBelongToAnEvent(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, died := range map[string]bool{"failed": false, "its process died": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := runtimetest.NewNotes()
			h.Fail = func(outbox.Delivery[runtimetest.Said]) error { return runtimetest.ErrHandler }
			retry := outbox.Retry{MaxAttempts: 3}
			before := runtimetest.ListenTo(t, pool, listener.Spec{Retry: retry}, listener.Config{}, h)
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				_, err := runtimetest.LooseTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "a", N: 1})
				require.NoError(t, err)
			})
			runtimetest.Put(t, pool, "b", 1)
			for range 2 {
				require.Equal(t, listener.Report{Retried: 1}, runtimetest.DrainAll(t, before))
				runtimetest.RetryNow(t, pool)
			}
			if died {
				pgtest.Execute(t, pool, `UPDATE outbox.listeners SET running = true, lease_by = gen_random_uuid(), lease_id = gen_random_uuid(),
					lease_until = statement_timestamp() - interval '1 s'`)
			}
			without, err := listener.New(pool, listener.Spec{Name: "ears", Retry: retry}, listener.Config{Logger: runtimetest.DiscardLogger()},
				listener.Handle(runtimetest.SaidTopic, h, h.Handle))
			require.NoError(t, err)
			for len(h.Started) > 0 {
				<-h.Started
			}
			for attempt := range 2 {
				require.Equal(t, listener.Report{Retried: 1}, runtimetest.DrainAll(t, without))
				d := pgtest.Receive(t, h.Started, "the handler")
				require.Equal(t, runtimetest.Said{Key: "b", N: 1}, d.Payload)
				require.Equal(t, attempt+1, d.Attempt)
				runtimetest.RetryNow(t, pool)
			}
			require.Equal(t, listener.Report{Dead: 1}, runtimetest.DrainAll(t, without))
			require.Equal(t, 3, pgtest.Value[int](t, pool, "SELECT attempts FROM outbox.dead_letters"))
		})
	}
}
