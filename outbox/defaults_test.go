package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// Whatever a role has for defaults, SERIALIZABLE among them: pgtest.Strict fails a test in which a statement of ours runs
// outside a transaction that says its level.

func TestDefaultsOfTheRoleDoNotMatterToTheQueue(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	strict := pgtest.Strict(t, pool)
	require.NoError(t, migrate.Validate(t.Context(), strict, pgtest.Schema))

	enqueueN(t, pool, 4)
	s, err := outbox.NewStore(strict, outbox.StoreConfig{Namespace: space, Retention: map[string]outbox.Retention{"ping": {}}})
	require.NoError(t, err)
	claimed := claimN(t, s, 4)
	_, err = s.Ack(t.Context(), claimed[0])
	require.NoError(t, err)
	_, err = s.Nack(t.Context(), outbox.Failure{Claimed: claimed[1], Err: errHandler})
	require.NoError(t, err)
	_, err = s.Release(t.Context(), claimed[2])
	require.NoError(t, err)
	_, err = s.Extend(t.Context(), longLease, claimed[3])
	require.NoError(t, err)
	outcomes, err := s.Ack(t.Context(), claimed...)
	require.ErrorIs(t, err, outbox.ErrLeaseLost)
	require.Equal(t, []outbox.Outcome{outbox.Already, outbox.Lost, outbox.Lost, outbox.Applied}, outcomes)
	_, err = s.SweepDead(t.Context())
	require.NoError(t, err)
	execute(t, pool, "UPDATE outbox.events SET finalized_at = finalized_at - interval '1 year' WHERE finalized_at IS NOT NULL")
	n, err := s.Prune(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)

	// Two dispatchers and their doorbell, while events are enqueued and some fail at first.
	topic := jobTopic("any")
	handler := onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		if d.Attempt == 1 && d.Payload.N%5 == 0 {
			return errHandler
		}
		return nil
	})
	first := start(t, dispatcher(t, strict, quick(), handler))
	second := start(t, dispatcher(t, strict, quick(), handler))
	for _, p := range numbered(40) {
		enqueueJobs(t, pool, topic, p)
	}
	settles(t, pool, 40, delivered+" AND topic = 'any'")
	require.NoError(t, first())
	require.NoError(t, second())
	enqueueN(t, pool, 1)
	enqueueJobs(t, pool, topic, numbered(41)[40])
	_, err = dispatcher(t, strict, quick(), handler).Drain(t.Context())
	require.NoError(t, err)
}

func TestDefaultsOfTheRoleDoNotMatterToListeners(t *testing.T) {
	t.Parallel()
	for _, transactional := range []bool{false, true} {
		t.Run(fmt.Sprint("transactional ", transactional), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			strict := pgtest.Strict(t, pool)
			h := newNotes()
			var mu sync.Mutex
			failed := make(map[uuid.UUID]bool)
			h.fail = func(d outbox.Delivery[said]) error {
				mu.Lock()
				defer mu.Unlock()
				if d.Payload.N%17 == 0 && !failed[d.ID] {
					failed[d.ID] = true
					return errHandler
				}
				return nil
			}
			c := crowded()
			stop := flow(t, pool, c, h)
			retry := outbox.Retry{BaseDelay: time.Millisecond, MaxDelay: time.Millisecond}
			for _, shards := range []int{1, 3, 2} { // each asks for another number while the one before is busy
				spec := outbox.ListenerSpec{Shards: shards, Retry: retry, MaxLag: time.Hour, ParkKeys: !transactional}
				cfg := outbox.ListenerConfig{BatchSize: 7, PruneInterval: interval}
				l := listenTo(t, strict, spec, cfg, h)
				if transactional {
					l = listenTxOn(t, pool, strict, spec, cfg, h)
				}
				signals := outbox.WatchListener(l)
				startListener(t, l)
				settles(t, pool, shards, "SELECT count(*) FROM outbox.listeners WHERE shards = $1", shards)
				receive(t, signals.Maintained, "maintenance")
				h.await(t, len(h.names())+50)
			}
			n := stop()
			h.await(t, n)
			require.Equal(t, n, h.inOrder(t))
		})
	}
}

func TestDefaultsOfTheRoleDoNotMatterToTheAdministration(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	strict := pgtest.Strict(t, pool)
	a := adminOf(t, strict)
	h := newNotes()
	h.fail = failFor("b", "c")
	drainAll(t, listenTo(t, strict, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h))
	drainAll(t, listenTo(t, strict, outbox.ListenerSpec{Name: "eyes", ParkKeys: true, Retry: late}, outbox.ListenerConfig{}, h))
	putAll(t, pool, "a1", "b1", "b2", "c1")
	drainAll(t, listenTo(t, strict, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h))
	drainAll(t, listenTo(t, strict, outbox.ListenerSpec{Name: "eyes", ParkKeys: true, Retry: late}, outbox.ListenerConfig{}, h))
	list, err := a.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.NoError(t, a.Pause(t.Context(), "ears"))
	require.NoError(t, a.Resume(t.Context(), "ears"))
	require.Equal(t, idOf(t, pool, "b1"), skip(t, a, uuid.Nil).ID)
	_, err = a.Skip(t.Context(), "eyes", idOf(t, pool, "c1"))
	require.NoError(t, err)
	require.Equal(t, 4, rewind(t, a, time.Time{}))
	execute(t, pool, "UPDATE outbox.log SET created_at = created_at - interval '1 year'")
	topics := map[string]outbox.Retention{"test/said": {}}
	for _, admin := range []*outbox.ListenerAdmin{a.Preview(), a} {
		_, err = admin.Prune(t.Context(), topics)
		require.NoError(t, err)
	}
	execute(t, pool, "UPDATE outbox.listeners SET system_id = 1")
	r, err := a.Rebase(t.Context())
	require.NoError(t, err)
	require.True(t, r.Needed)
	_, err = a.Detach(t.Context(), "eyes")
	require.NoError(t, err)
	h.fail = nil
	drainAll(t, listenTo(t, strict, outbox.ListenerSpec{}, outbox.ListenerConfig{}, h))
	require.Contains(t, strings.Join(h.names(), " "), "a1 b1 b2 c1")
}
