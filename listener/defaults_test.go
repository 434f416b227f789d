package listener_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// The runtime works with any defaults of a role, including SERIALIZABLE. pgtest.Strict fails a test in which one of our
// statements runs outside a transaction with an explicit isolation level.

func TestDefaultsOfTheRoleDoNotMatterToTheQueue(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	strict := pgtest.Strict(t, pool)
	require.NoError(t, migrate.Validate(t.Context(), strict, pgtest.Schema))

	runtimetest.EnqueueN(t, pool, 4)
	s, err := queue.NewStore(strict, queue.StoreConfig{Namespace: runtimetest.Namespace, Retention: map[string]outbox.Retention{"ping": {}}})
	require.NoError(t, err)
	claimed := runtimetest.ClaimN(t, s, 4)
	_, err = s.Ack(t.Context(), claimed[0])
	require.NoError(t, err)
	_, err = s.Nack(t.Context(), queue.Failure{Claimed: claimed[1], Err: runtimetest.ErrHandler})
	require.NoError(t, err)
	_, err = s.Release(t.Context(), claimed[2])
	require.NoError(t, err)
	_, err = s.Extend(t.Context(), runtimetest.LongLease, claimed[3])
	require.NoError(t, err)
	outcomes, err := s.Ack(t.Context(), claimed...)
	require.ErrorIs(t, err, outbox.ErrLeaseLost)
	require.Equal(t, []queue.Outcome{queue.Already, queue.Lost, queue.Lost, queue.Applied}, outcomes)
	_, err = s.SweepDead(t.Context())
	require.NoError(t, err)
	pgtest.Execute(t, pool, "UPDATE testing.events SET finalized_at = finalized_at - interval '1 year' WHERE finalized_at IS NOT NULL")
	n, err := s.Prune(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)

	// Two dispatchers use the doorbell while events are enqueued, and some fail at first.
	topic := runtimetest.JobTopic("any")
	handler := runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if d.Attempt == 1 && d.Payload.N%5 == 0 {
			return runtimetest.ErrHandler
		}
		return nil
	})
	first := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, strict, runtimetest.QuickConfig(), handler))
	second := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, strict, runtimetest.QuickConfig(), handler))
	for _, p := range runtimetest.NumberedJobs(40) {
		runtimetest.EnqueueJobs(t, pool, topic, p)
	}
	pgtest.Settles(t, pool, 40, runtimetest.DeliveredSQL+" AND topic = 'any'")
	require.NoError(t, first())
	require.NoError(t, second())
	runtimetest.EnqueueN(t, pool, 1)
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(41)[40])
	_, err = runtimetest.Dispatcher(t, strict, runtimetest.QuickConfig(), handler).Drain(t.Context())
	require.NoError(t, err)
}

func TestDefaultsOfTheRoleDoNotMatterToListeners(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, transactional := range []bool{false, true} {
		t.Run(fmt.Sprint("transactional ", transactional), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			strict := pgtest.Strict(t, pool)
			h := runtimetest.NewNotes()
			var mu sync.Mutex
			failed := make(map[uuid.UUID]bool)
			h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
				mu.Lock()
				defer mu.Unlock()
				if d.Payload.N%17 == 0 && !failed[d.ID] {
					failed[d.ID] = true
					return runtimetest.ErrHandler
				}
				return nil
			}
			c := crowded()
			stop := flow(t, pool, c, h)
			retry := outbox.Retry{BaseDelay: time.Millisecond, MaxDelay: time.Millisecond}
			for _, shards := range []int{1, 3, 2} { // each requests another number while the previous one is busy
				spec := listener.Spec{Shards: shards, Retry: retry, MaxLag: time.Hour, ParkKeys: !transactional}
				cfg := listener.Config{BatchSize: 7, PruneInterval: pgtest.Interval}
				l := runtimetest.ListenTo(t, strict, spec, cfg, h)
				if transactional {
					l = runtimetest.ListenTxOn(t, pool, strict, spec, cfg, h)
				}
				signals := listener.Watch(l)
				runtimetest.StartListener(t, l)
				pgtest.Settles(t, pool, shards, "SELECT count(*) FROM outbox.listeners WHERE shards = $1", shards)
				pgtest.Receive(t, signals.Maintained, "maintenance")
				h.Await(t, len(h.Names())+50)
			}
			n := stop()
			h.Await(t, n)
			require.Equal(t, n, h.InOrder(t))
		})
	}
}

func TestDefaultsOfTheRoleDoNotMatterToTheAdministration(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	strict := pgtest.Strict(t, pool)
	a := runtimetest.AdminOf(t, strict)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b", "c")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, strict, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h))
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, strict, listener.Spec{Name: "eyes", ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, h))
	runtimetest.PutAll(t, pool, "a1", "b1", "b2", "c1")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, strict, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h))
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, strict, listener.Spec{Name: "eyes", ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, h))
	list, err := a.Listeners(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	runtimetest.Pause(t, a, admin.Scope{Listener: "ears"})
	runtimetest.Resume(t, a, admin.Scope{Listener: "ears"})
	require.Equal(t, runtimetest.IDOf(t, pool, "b1"), runtimetest.Skip(t, a, uuid.Nil).ID)
	_, err = a.Skip(t.Context(), "eyes", runtimetest.IDOf(t, pool, "c1"))
	require.NoError(t, err)
	require.Equal(t, 4, runtimetest.Rewind(t, a, time.Time{}))
	pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = created_at - interval '1 year'")
	topics := map[string]outbox.Retention{"test/said": {}}
	for _, admin := range []*admin.Admin{a.Preview(), a} {
		_, err = admin.Prune(t.Context(), topics)
		require.NoError(t, err)
	}
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET system_id = 1")
	r, err := a.Rebase(t.Context())
	require.NoError(t, err)
	require.True(t, r.Needed)
	_, err = a.Detach(t.Context(), "eyes")
	require.NoError(t, err)
	h.Fail = nil
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, strict, listener.Spec{}, listener.Config{}, h))
	require.Contains(t, strings.Join(h.Names(), " "), "a1 b1 b2 c1")
}
