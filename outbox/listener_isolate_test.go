package outbox_test

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

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// behind counts events that no cursor has passed yet.
const behind = "SELECT count(*)::int FROM outbox.log AS g WHERE g.seq > (SELECT max(greatest(l.high_seq, l.last_seq)) FROM outbox.listeners AS l)"

// stream enqueues events all the time, until stop, so that there are always some hundred that wait.
func stream(t *testing.T, pool *pgxpool.Pool, c *crowd) (stop func()) {
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
				c.enqueue(t, pool, 50)
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

// crashes runs one child after the other until one event is dead, and returns how many of them were killed by one.
func crashes(t *testing.T, pool *pgxpool.Pool, o listenerOrders) (n int) {
	t.Helper()
	for {
		c := newListenerChild(t, pool, o)
		ended := make(chan error, 1)
		go func() {
			for range c.lines { // to the end
			}
			ended <- c.wait()
		}()
		look := time.NewTicker(20 * time.Millisecond)
		for alive := true; alive; {
			select {
			case err := <-ended:
				require.ErrorContains(t, err, "exit status 7")
				alive = false
			case <-look.C:
				if count(t, pool, "SELECT count(*) FROM outbox.dead_letters") > 0 {
					look.Stop()
					require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
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
// attempts, whatever comes meanwhile: of the crashes one is before anybody knows, and none is charged to another event.
func TestListenerPoisonInAStream(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			bothModes(t, func(t *testing.T, transactional bool) {
				pool := pgtest.Database(t)
				makeEffects(t, pool)
				c := crowded()
				o := listenerOrders{
					Transactional: transactional, Lease: time.Minute, Poll: 50 * time.Millisecond, Attempts: 3, ParkKeys: park, BatchSize: 20,
				}
				key, want := "poison", 4 // one unknown, then each of three attempts
				if park {
					key, want = "bomb", 3 // the first attempt fails, and it is parked
				}
				c.enqueue(t, pool, 300)
				put1(t, pool, key, 1)
				c.enqueue(t, pool, 300)
				stop := stream(t, pool, c)
				require.Equal(t, want, crashes(t, pool, o))
				stop()
				require.Equal(t, key+" 3", value[string](t, pool, "SELECT string_agg(concat(payload->>'key', ' ', attempts), ', ') FROM outbox.dead_letters"))
				drained := newNotes()
				drainAll(t, listenAs(t, pool, transactional, outbox.ListenerSpec{ParkKeys: park}, outbox.ListenerConfig{}, drained))
				for _, d := range drained.got {
					require.Equal(t, 1, d.Attempt)
				}
				require.Equal(t, 1, value[int](t, pool, "SELECT max(attempt) FROM effects"), "no attempt of another event was counted")
				require.Zero(t, value[int](t, pool, disorder))
				require.Zero(t, count(t, pool, "SELECT count(*) FROM outbox.parked"))
			})
		})
	}
}

// TestListenerHandlesManyParkedEventsOneByOne: among keys that were parked, all due and each with followers, one follower ends every
// process. Those that were not taken with it use up no care.
func TestListenerHandlesManyParkedEventsOneByOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	makeEffects(t, pool)
	var ps []said
	for i := range 100 {
		key := fmt.Sprintf("key%02d", i)
		if i == 10 {
			ps = append(ps, said{Key: key, N: 1}, said{Key: key, N: 2}, said{Key: key, N: -1}, said{Key: key, N: 3})
			continue
		}
		ps = append(ps, said{Key: key, N: 1}, said{Key: key, N: 2}, said{Key: key, N: 3})
	}
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := saidTopic.Untyped().EnqueueMany(t.Context(), tx, ps)
		require.NoError(t, err)
	})
	h := newNotes()
	h.fail = func(outbox.Delivery[said]) error { return errHandler }
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{ParkKeys: true}, outbox.ListenerConfig{}, h))
	retryNow(t, pool)
	o := listenerOrders{Lease: time.Minute, Poll: 50 * time.Millisecond, Attempts: 3, ParkKeys: true}
	before := value[int](t, pool, "SELECT lease_no::int FROM outbox.listeners")
	require.Equal(t, 4, crashes(t, pool, o))
	leases := value[int](t, pool, "SELECT lease_no::int FROM outbox.listeners") - before
	require.Less(t, leases, 100, "those of twenty keys are taken one by one, not those of a hundred")
	require.Equal(t, "key10 -1 3", value[string](t, pool, "SELECT string_agg(concat(payload->>'key', ' ', payload->>'n', ' ', attempts), ', ') FROM outbox.dead_letters"))
}

// TestListenerSearchesBrokenTransactionsByHalves: the events that break a transaction at its commit, in the log or parked, is found in a
// few tries, although other events come all the time; and it is tried by itself from then on.
func TestListenerSearchesBrokenTransactionsByHalves(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			execute(t, pool, "CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
			execute(t, pool, "INSERT INTO deferred VALUES (1)")
			log := newSpy()
			retry := soon(5)
			l := listenTxFunc(t, pool, outbox.ListenerSpec{Retry: retry, ParkKeys: park}, outbox.ListenerConfig{Logger: log.logger()},
				func(ctx context.Context, tx pgx.Tx, d outbox.Delivery[said]) error {
					switch {
					case d.Payload.Key != "x" || d.Payload.N != 1:
					case park && d.Attempt == 1:
						return errHandler
					default:
						if _, err := tx.Exec(ctx, "INSERT INTO deferred VALUES (1)"); err != nil {
							return err
						}
					}
					return effect(ctx, tx, d)
				})
			c := crowded()
			c.enqueue(t, pool, 90)
			put1(t, pool, "x", 1)
			put1(t, pool, "x", 2)
			c.enqueue(t, pool, 210)
			end := stream(t, pool, c)
			stop := startListener(t, l)
			settles(t, pool, 1, "SELECT count(*) FROM outbox.dead_letters")
			end()
			finished(t, pool)
			settles(t, pool, 0, "SELECT count(*) FROM outbox.parked")
			stop()
			require.Equal(t, "x 1 5", value[string](t, pool, "SELECT string_agg(concat(payload->>'key', ' ', payload->>'n', ' ', attempts), ', ') FROM outbox.dead_letters"))
			broken := strings.Count(log.String(), "events are rolled back")
			require.LessOrEqual(t, broken, 8, "log2 of a lease, once: %s", log)
			require.NotZero(t, broken)
			require.Equal(t, 1, value[int](t, pool, "SELECT max(attempt) FROM effects"))
			require.Zero(t, value[int](t, pool, disorder))
			total := count(t, pool, "SELECT count(*) FROM outbox.log")
			require.Equal(t, total-1, count(t, pool, "SELECT count(*) FROM effects"))
			require.Equal(t, total-1, count(t, pool, "SELECT count(DISTINCT event_id) FROM effects"))
		})
	}
}

// TestListenerAttemptsBelongToAnEvent: a listener is blocked by an event of a topic that it reads no longer when it comes
// back, after a failure or because its process died. The next event has its own attempts.
func TestListenerAttemptsBelongToAnEvent(t *testing.T) {
	t.Parallel()
	for name, died := range map[string]bool{"failed": false, "its process died": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := newNotes()
			h.fail = func(outbox.Delivery[said]) error { return errHandler }
			retry := outbox.Retry{MaxAttempts: 3}
			before := listenTo(t, pool, outbox.ListenerSpec{Retry: retry}, outbox.ListenerConfig{}, h)
			inTx(t, pool, func(tx pgx.Tx) {
				_, err := looseTopic.Untyped().Enqueue(t.Context(), tx, said{"a", 1})
				require.NoError(t, err)
			})
			put1(t, pool, "b", 1)
			for range 2 {
				require.Equal(t, outbox.DrainReport{Retried: 1}, drainAll(t, before))
				retryNow(t, pool)
			}
			if died {
				execute(t, pool, `UPDATE outbox.listeners SET running = true, lease_by = gen_random_uuid(), lease_id = gen_random_uuid(),
					lease_until = statement_timestamp() - interval '1 s'`)
			}
			without, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "ears", Retry: retry}, outbox.ListenerConfig{Logger: quiet()},
				outbox.Listen(saidTopic, h, h.handle))
			require.NoError(t, err)
			for len(h.started) > 0 {
				<-h.started
			}
			for attempt := range 2 {
				require.Equal(t, outbox.DrainReport{Retried: 1}, drainAll(t, without))
				d := receive(t, h.started, "the handler")
				require.Equal(t, said{"b", 1}, d.Payload)
				require.Equal(t, attempt+1, d.Attempt)
				retryNow(t, pool)
			}
			require.Equal(t, outbox.DrainReport{Dead: 1}, drainAll(t, without))
			require.Equal(t, 3, value[int](t, pool, "SELECT attempts FROM outbox.dead_letters"))
		})
	}
}
