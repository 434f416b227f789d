package listener_test

import (
	"context"
	"strings"
	"sync"
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

// TestListenerIdleHolderIsReplaced: a process that has handled all events is killed. It holds nothing, so another
// process handles the next event at its next poll, or immediately if the doorbell wakes it, however long a lease is.
func TestListenerIdleHolderIsReplaced(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const lease, poll = 3 * runtimetest.Rarely, 500 * time.Millisecond
	for name, c := range map[string]struct {
		cfg    listener.Config
		within time.Duration
	}{
		"by its poll": {listener.Config{LeaseDuration: lease, PollInterval: poll, MaxPollInterval: poll, Wake: outbox.WakePoll}, 2*poll + runtimetest.Promptly},
		"by the bell": {listener.Config{LeaseDuration: lease, PollInterval: runtimetest.Rarely}, runtimetest.Promptly},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
				pool := pgtest.Database(t)
				runtimetest.MakeEffects(t, pool)
				child := newListenerChild(t, pool, listenerOrders{
					Transactional: transactional, Lease: lease, Poll: 20 * time.Millisecond, Attempts: 5, Polls: true,
				})
				runtimetest.PutAll(t, pool, "a1")
				child.Await(t, runtimetest.Handling)
				finished(t, pool)
				h := runtimetest.NewNotes()
				l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, c.cfg, h)
				watch := listener.Watch(l)
				runtimetest.StartListener(t, l)
				pgtest.Receive(t, watch.Idle, "sleep")
				require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE preferred IS NOT NULL AND lease_by IS NULL"))
				child.Kill()
				begin := time.Now()
				runtimetest.PutAll(t, pool, "a2")
				h.Await(t, 1)
				took := time.Since(begin)
				t.Logf("lease %s: taken over after %s", lease, took)
				require.Less(t, took, c.within)
				require.Equal(t, 1, h.Got[0].Attempt)
			})
		})
	}
}

// TestListenerShardsStay: of two sleeping processes, the one that had the latest lease takes the next one too. The
// other leaves it to that process, and takes it over once its take-over pause has passed.
func TestListenerShardsStay(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	sleeper := func(h *runtimetest.Notes, handicap time.Duration) (listener.TestSignals, func()) {
		cfg := listener.Config{PollInterval: 20 * time.Millisecond}
		l := runtimetest.ListenTo(t, pool, listener.Spec{Shards: 3}, cfg, h)
		listener.LimitTakeOver(l, handicap)
		watch := listener.Watch(l)
		return watch, runtimetest.StartListener(t, l)
	}
	first, second := runtimetest.NewNotes(), runtimetest.NewNotes()
	runtimetest.PutAll(t, pool, "a1", "b1", "c1", "d1", "e1", "f1", "g1", "h1")
	_, stop := sleeper(first, time.Hour)
	first.Await(t, 8)
	pgtest.Settles(t, pool, 3, "SELECT count(*) FROM outbox.listeners WHERE NOT running AND preferred IS NOT NULL")
	watch, _ := sleeper(second, time.Hour)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE wanted_by IS NOT NULL") // one of three is requested
	pgtest.Receive(t, watch.Idle, "sleep")
	asked := pgtest.Value[string](t, pool, "SELECT shard || ' ' || wanted_by FROM outbox.listeners WHERE wanted_by IS NOT NULL")
	for n := range 20 {
		runtimetest.Put(t, pool, "a", n+2) // every shard takes a lease, whichever shard has the event
		pgtest.Settles(t, pool, 3, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = $1", 9+n)
	}
	require.Equal(t, 1, pgtest.Count(t, pool, `SELECT count(*) FROM outbox.listeners WHERE preferred = split_part($1, ' ', 2)::uuid
		AND shard = split_part($1, ' ', 1)::int`, asked))
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM (SELECT DISTINCT preferred FROM outbox.listeners) AS p"))
	require.Equal(t, 28, len(first.Names())+len(second.Names()))
	stop()
	runtimetest.Put(t, pool, "a", 22)
	pgtest.Settles(t, pool, 3, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = 29")
}

// TestListenerIdleReplicasWriteNothing: several processes that share the shards and check all the time write nothing
// while idle.
func TestListenerIdleReplicasWriteNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	c := crowded()
	c.Enqueue(t, pool, 100)
	cfg := listener.Config{Wake: outbox.WakePoll, PollInterval: 2 * time.Millisecond, MaxPollInterval: 2 * time.Millisecond, PruneInterval: -1}
	var watches []listener.TestSignals
	for range 3 {
		l := runtimetest.ListenTo(t, pool, listener.Spec{Shards: 7}, cfg, h)
		listener.LimitTakeOver(l, time.Hour)
		watches = append(watches, listener.Watch(l))
		runtimetest.StartListener(t, l)
	}
	h.Await(t, 100)
	pgtest.Settles(t, pool, 7, "SELECT count(*) FROM outbox.listeners WHERE NOT running AND NOT in_batch AND high_seq = 100")
	idle := func() {
		for range 20 {
			for _, w := range watches {
				pgtest.Receive(t, w.Idle, "idleness")
			}
		}
	}
	const versions = "SELECT string_agg(concat(shard, ' ', xmin, ' ', ctid), ', ' ORDER BY shard) FROM outbox.listeners"
	idle() // all requests have been made
	before := pgtest.Value[string](t, pool, versions)
	idle()
	require.Equal(t, before, pgtest.Value[string](t, pool, versions))
}

// sent records the statements that took leases, with their arguments. While it is locked, no batch is sent.
type sent struct {
	sync.RWMutex
	leases []*pgx.QueuedQuery // of the one process that sends any
}

func (s *sent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (s *sent) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (s *sent) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	s.RLock()
	for _, q := range data.Batch.QueuedQueries {
		if strings.Contains(q.SQL, "name: ListenerTakeLease ") {
			s.leases = append(s.leases, q)
		}
	}
	return ctx
}
func (s *sent) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (s *sent) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     { s.RUnlock() }

// TestLateCopyOfALeaseTakesNothing: statements that took leases, or tried to, reach the server once more: while the
// process that sent them sleeps and an event waits, and after it has stopped. No copy opens a lease that nobody
// handles. The only lease that a copy may take is the one that the process requests next.
func TestLateCopyOfALeaseTakesNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, edits := range map[string][]listener.Edit{"as it is": nil, "without the fence": {listener.WithoutFence}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			record := &sent{}
			cfg := pool.Config()
			cfg.ConnConfig.Tracer = record
			traced, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(traced.Close)
			h := runtimetest.NewNotes()
			l := runtimetest.ListenTo(t, traced, listener.Spec{}, dozing(), h)
			listener.Mutate(l, edits...)
			watch := listener.Watch(l)
			stop := runtimetest.StartListener(t, l)
			silent := runtimetest.SaidTopic
			silent = runtimetest.Altered(silent, func(s *outbox.TopicSpec) { s.Silent = true })
			copies := func(current bool) (taken int) {
				leases := record.leases
				const name = 2 // of the arguments
				for _, q := range leases {
					if (q.Arguments[name] == leases[len(leases)-1].Arguments[name]) == current {
						tag, err := pool.Exec(t.Context(), q.SQL, q.Arguments...)
						require.NoError(t, err)
						taken += int(tag.RowsAffected())
					}
				}
				return taken
			}
			for n := range 3 {
				pgtest.Receive(t, watch.Idle, "sleep")
				runtimetest.Put(t, pool, "a", n+1)
				h.Await(t, n+1)
				finished(t, pool)
			}
			pgtest.Receive(t, watch.Idle, "sleep")
			record.Lock() // the process may be checking
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				_, err := silent.Enqueue(t.Context(), tx, runtimetest.Said{Key: "a", N: 4})
				require.NoError(t, err)
			})
			if len(edits) > 0 {
				taken := copies(false)
				record.Unlock()
				require.NotZero(t, taken)
				return
			}
			over, next := copies(false), copies(true)
			record.Unlock()
			require.Zero(t, over, "leases that are over")
			require.NotZero(t, next, "the lease that the process asks for next")
			runtimetest.Put(t, pool, "a", 5)
			h.Await(t, 5) // the lease is its own
			finished(t, pool)
			stop()
			runtimetest.Put(t, pool, "a", 6)
			require.Zero(t, copies(false)+copies(true), "the process has stopped")
			require.Equal(t, listener.Report{Delivered: 1}, runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)))
			require.Equal(t, 6, h.InOrder(t))
			for _, d := range h.Got {
				require.Equal(t, 1, d.Attempt)
			}
			require.Zero(t, pgtest.Value[int](t, pool, "SELECT one_by_one FROM outbox.listeners"))
		})
	}
}
