package outbox_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerIdleHolderIsReplaced: a process that has handled what there was is killed. It holds nothing, so that another
// handles the next event by its next poll, or immediately when it hears the bell, however long a lease is.
func TestListenerIdleHolderIsReplaced(t *testing.T) {
	t.Parallel()
	const lease, poll = 3 * rarely, 500 * time.Millisecond
	for name, c := range map[string]struct {
		cfg    outbox.ListenerConfig
		within time.Duration
	}{
		"by its poll": {outbox.ListenerConfig{LeaseDuration: lease, PollInterval: poll, MaxPollInterval: poll, Wake: outbox.WakePoll}, 2*poll + promptly},
		"by the bell": {outbox.ListenerConfig{LeaseDuration: lease, PollInterval: rarely}, promptly},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothModes(t, func(t *testing.T, transactional bool) {
				pool := pgtest.Database(t)
				makeEffects(t, pool)
				child := newListenerChild(t, pool, listenerOrders{
					Transactional: transactional, Lease: lease, Poll: 20 * time.Millisecond, Attempts: 5, Polls: true,
				})
				putAll(t, pool, "a1")
				child.await(t, handling)
				finished(t, pool)
				h := newNotes()
				l := listenAs(t, pool, transactional, outbox.ListenerSpec{}, c.cfg, h)
				watch := outbox.WatchListener(l)
				startListener(t, l)
				receive(t, watch.Idle, "sleep")
				require.Equal(t, 1, count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE preferred IS NOT NULL AND lease_by IS NULL"))
				child.kill()
				begin := time.Now()
				putAll(t, pool, "a2")
				h.await(t, 1)
				took := time.Since(begin)
				t.Logf("lease %s: taken over after %s", lease, took)
				require.Less(t, took, c.within)
				require.Equal(t, 1, h.got[0].Attempt)
			})
		})
	}
}

// TestListenerShardsStay: of two processes that sleep, the one that had the latest lease has the next. The other leaves it to
// it; and it takes it when it must not wait.
func TestListenerShardsStay(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	sleeper := func(h *notes, handicap time.Duration) (outbox.ListenerSignals, func()) {
		cfg := outbox.ListenerConfig{PollInterval: 20 * time.Millisecond}
		l := listenTo(t, pool, outbox.ListenerSpec{Shards: 3}, cfg, h)
		outbox.LimitTakeOver(l, handicap)
		watch := outbox.WatchListener(l)
		return watch, startListener(t, l)
	}
	first, second := newNotes(), newNotes()
	putAll(t, pool, "a1", "b1", "c1", "d1", "e1", "f1", "g1", "h1")
	_, stop := sleeper(first, time.Hour)
	first.await(t, 8)
	settles(t, pool, 3, "SELECT count(*) FROM outbox.listeners WHERE NOT running AND preferred IS NOT NULL")
	watch, _ := sleeper(second, time.Hour)
	settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE wanted_by IS NOT NULL") // of three one is asked for
	receive(t, watch.Idle, "sleep")
	asked := value[string](t, pool, "SELECT shard || ' ' || wanted_by FROM outbox.listeners WHERE wanted_by IS NOT NULL")
	for n := range 20 {
		put1(t, pool, "a", n+2) // every shard has a lease, whosever the event is
		settles(t, pool, 3, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = $1", 9+n)
	}
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM outbox.listeners WHERE preferred = split_part($1, ' ', 2)::uuid
		AND shard = split_part($1, ' ', 1)::int`, asked))
	require.Equal(t, 2, count(t, pool, "SELECT count(*) FROM (SELECT DISTINCT preferred FROM outbox.listeners) AS p"))
	require.Equal(t, 28, len(first.names())+len(second.names()))
	stop()
	put1(t, pool, "a", 22)
	settles(t, pool, 3, "SELECT count(*) FROM outbox.listeners WHERE NOT in_batch AND high_seq = 29")
}

// TestListenerIdleReplicasWriteNothing: nor do several processes that share the shards and look all the time.
func TestListenerIdleReplicasWriteNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	c := crowded()
	c.enqueue(t, pool, 100)
	cfg := outbox.ListenerConfig{Wake: outbox.WakePoll, PollInterval: 2 * time.Millisecond, MaxPollInterval: 2 * time.Millisecond, PruneInterval: -1}
	var watches []outbox.ListenerSignals
	for range 3 {
		l := listenTo(t, pool, outbox.ListenerSpec{Shards: 7}, cfg, h)
		outbox.LimitTakeOver(l, time.Hour)
		watches = append(watches, outbox.WatchListener(l))
		startListener(t, l)
	}
	h.await(t, 100)
	settles(t, pool, 7, "SELECT count(*) FROM outbox.listeners WHERE NOT running AND NOT in_batch AND high_seq = 100")
	idle := func() {
		for range 20 {
			for _, w := range watches {
				receive(t, w.Idle, "idleness")
			}
		}
	}
	const versions = "SELECT string_agg(concat(shard, ' ', xmin, ' ', ctid), ', ' ORDER BY shard) FROM outbox.listeners"
	idle() // what was asked for is asked for
	before := value[string](t, pool, versions)
	idle()
	require.Equal(t, before, value[string](t, pool, versions))
}

// sent keeps the statements that took leases, with their arguments. Whoever locks it lets no batch through.
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

// TestLateCopyOfALeaseTakesNothing: statements that took leases, or would have, reach the server once more, while the process
// that sent them sleeps and an event waits, and when it has stopped. None opens a lease that nobody handles: the one that may
// still be taken is the one that the process asks for next.
func TestLateCopyOfALeaseTakesNothing(t *testing.T) {
	t.Parallel()
	for name, edits := range map[string][]outbox.Edit{"as it is": nil, "without the fence": {outbox.WithoutFence}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			record := &sent{}
			cfg := pool.Config()
			cfg.ConnConfig.Tracer = record
			traced, err := pgxpool.NewWithConfig(t.Context(), cfg)
			require.NoError(t, err)
			t.Cleanup(traced.Close)
			h := newNotes()
			l := listenTo(t, traced, outbox.ListenerSpec{}, dozing(), h)
			outbox.Mutate(l, edits...)
			watch := outbox.WatchListener(l)
			stop := startListener(t, l)
			silent := saidTopic
			silent = altered(silent, func(s *outbox.TopicSpec) { s.Silent = true })
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
				receive(t, watch.Idle, "sleep")
				put1(t, pool, "a", n+1)
				h.await(t, n+1)
				finished(t, pool)
			}
			receive(t, watch.Idle, "sleep")
			record.Lock() // it may be looking
			inTx(t, pool, func(tx pgx.Tx) {
				_, err := silent.Untyped().Enqueue(t.Context(), tx, said{Key: "a", N: 4})
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
			put1(t, pool, "a", 5)
			h.await(t, 5) // it is its own
			finished(t, pool)
			stop()
			put1(t, pool, "a", 6)
			require.Zero(t, copies(false)+copies(true), "the process has stopped")
			require.Equal(t, outbox.DrainReport{Delivered: 1}, drainAll(t, listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{}, h)))
			require.Equal(t, 6, h.inOrder(t))
			for _, d := range h.got {
				require.Equal(t, 1, d.Attempt)
			}
			require.Zero(t, value[int](t, pool, "SELECT one_by_one FROM outbox.listeners"))
		})
	}
}
