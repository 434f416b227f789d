package admin_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestForgetTheEventThatBlocks: the listener goes on at once, and the next event has no attempt of the one that is gone.
func TestForgetTheEventThatBlocks(t *testing.T) {
	t.Parallel()
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		a := runtimetest.AdminOf(t, pool)
		tenant := uuid.New()
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.Failing("b1")
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{}, listener.Config{}, h)
		runtimetest.DrainAll(t, l)
		runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "a", 1), saidMessage(tenant, "b", 1), saidMessage(tenant, "a", 2))
		runtimetest.DrainAll(t, l)
		require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE retry_count > 0 AND retry_after > now() AND last_error <> ''"))
		forget(t, a, undelivered(ofOrder("b")))
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners WHERE retry_count > 0 OR retry_after IS NOT NULL OR last_error IS NOT NULL"))
		require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listener_failures"))
		runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "c", 1))
		runtimetest.DrainAll(t, l)
		require.ElementsMatch(t, []string{"a1", "a2", "c1"}, slices.Compact(slices.Sorted(slices.Values(h.Names()))))
		for _, d := range h.Got {
			require.Equal(t, 1, d.Attempt, d.Payload)
		}
	})
}

// TestForgetAheadOfTheCursor: events of the open window that were tried, or are done, before the cursor has reached them.
func TestForgetAheadOfTheCursor(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant := uuid.New()
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("a", "c")
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{Concurrency: 4}, h)
	runtimetest.DrainAll(t, l)
	var ms []outbox.Message
	for n := range 3 {
		for _, key := range []string{"a", "b", "c", "d"} {
			ms = append(ms, saidMessage(tenant, key, n))
		}
	}
	runtimetest.EnqueueAll(t, pool, ms...)
	runtimetest.DrainAll(t, l)
	require.Positive(t, pgtest.Count(t, pool, "SELECT cardinality(ahead_seqs) FROM outbox.listeners"))
	for _, key := range []string{"c", "d"} {
		forget(t, a, undelivered(ofOrder(key)))
		require.Zero(t, pgtest.Count(t, pool, `SELECT count(*) FROM outbox.listeners AS l CROSS JOIN unnest(l.ahead_seqs) AS s
			WHERE s NOT IN (SELECT seq FROM outbox.log)`))
	}
	h.Mu.Lock()
	h.Fail = nil
	h.Mu.Unlock()
	runtimetest.RetryNow(t, pool)
	runtimetest.DrainAll(t, l)
	got := h.Names()
	for n := range 3 {
		require.Contains(t, got, fmt.Sprint("a", n))
		require.Contains(t, got, fmt.Sprint("b", n))
		require.NotContains(t, got, fmt.Sprint("c", n))
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT cardinality(ahead_seqs) FROM outbox.listeners"))
}

// TestForgetUnderAHandler: the lease is taken from its holder, whose result of the event that is gone changes nothing: it is
// no dead letter and not parked. What else it was handling is delivered again.
func TestForgetUnderAHandler(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			a := runtimetest.AdminOf(t, pool)
			tenant := uuid.New()
			h := runtimetest.NewNotes()
			h.Hold = make(chan struct{})
			h.Fail = runtimetest.FailFor("b")
			l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: park, Retry: outbox.Retry{MaxAttempts: 1}}, listener.Config{Concurrency: 3}, h)
			runtimetest.StartListener(t, l)
			pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners")
			runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "a", 1), saidMessage(tenant, "b", 1), saidMessage(tenant, "b", 2))
			for range 2 {
				pgtest.Receive(t, h.Started, "a handler")
			}
			forget(t, a, undelivered(ofOrder("b")))
			close(h.Hold)
			pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.listeners WHERE in_batch OR running OR high_seq < (SELECT max(seq) FROM outbox.log)")
			require.Contains(t, h.Names(), "a1")
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
			runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "c", 1))
			pgtest.Eventually(t, func() bool { return slices.Contains(h.Names(), "c1") })
		})
	}
}

// TestForgetParkedEvents: if the head of a key is gone, the next event of the key is its head, and due.
func TestForgetParkedEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant, other := uuid.New(), uuid.New()
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.Failing("a1")
	l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true}, listener.Config{}, h)
	runtimetest.DrainAll(t, l)
	// Two tenants have the same key of the order.
	runtimetest.EnqueueAll(t, pool, saidMessage(tenant, "a", 1), saidMessage(other, "a", 2), saidMessage(tenant, "a", 3), saidMessage(other, "b", 1))
	runtimetest.DrainAll(t, l)
	require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
	r := forget(t, a, undelivered(ofTenant(tenant)))
	require.EqualValues(t, 2, r.Events)
	require.Empty(t, traces(t, pool, tenant.String()))
	runtimetest.DrainAll(t, l)
	require.Equal(t, []string{"b1", "a2"}, h.Names())
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
}

// TestForgetInboxMessages: the messages of the key behind one that is gone become due.
func TestForgetInboxMessages(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	tenant, other := uuid.New(), uuid.New()
	put := func(id, key, status, due, envelope, body string, of uuid.UUID) {
		pgtest.Execute(t, pool, `INSERT INTO outbox.inbox_messages (consumer_group, message_id, place, key, event_id, type, namespace, topic,
				version, tenant_id, envelope, body, status, attempts, next_attempt_at, error)
			VALUES ('cards', $1::text, 'kafka:x/1@1', $2::text, gen_random_uuid(), 'test.said', 'test', 'said', 1, $3, $4::text::json, convert_to($5::text, 'UTF8'), $6::text, 1, $7::text::timestamptz, 'no')`,
			id, key, of, envelope, body, status, due)
	}
	put("1", "k", "parked", "now", "{}", "{}", tenant)
	put("2", "k", "parked", "infinity", "{}", "{}", other)
	put("3", "k", "parked", "infinity", "{}", "{}", tenant)
	forget(t, a, undelivered(ofTenant(tenant)))
	require.Equal(t, "2 true", pgtest.Value[string](t, pool, "SELECT string_agg(message_id || ' ' || (next_attempt_at <= now()), ', ') FROM outbox.inbox_messages"))

	// The entity of a message is in its attributes, its headers or its body.
	put("4", "k", "dead", "infinity", `{"attributes": {"entitytype": "order", "entityid": "7"}}`, "{}", other)
	put("5", "k", "dead", "infinity", `{"headers": {"outbox-entity-type": "order", "outbox-entity-id": "7"}}`, "no JSON", other)
	put("6", "k", "dead", "infinity", `{"content_type": "application/cloudevents+json"}`, `{"entitytype": "order", "entityid": "7", "data": {}}`, other)
	put("7", "k", "dead", "infinity", `{"attributes": {"entitytype": "order", "entityid": "8"}}`, "{}", other)
	put("8", "k", "dead", "infinity", `{}`, "no JSON", other)
	r := forget(t, a, ofOrder("7"))
	require.EqualValues(t, 3, r.Rows)
	require.Equal(t, "2 7 8", pgtest.Value[string](t, pool, "SELECT string_agg(message_id, ' ' ORDER BY message_id) FROM outbox.inbox_messages"))
}

// TestForgetBesideListeners: while listeners with shards, failures and parked keys run, some keys are forgotten, and others
// arrive. Of each other key all events are handled, in order, and the listeners come to rest.
func TestForgetBesideListeners(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			const keys, each, forgotten = 12, 25, 4
			pool := pgtest.Database(t)
			a := runtimetest.AdminOf(t, pool)
			tenant := uuid.New()
			h := runtimetest.NewNotes()
			var mu sync.Mutex
			failures := 60
			h.Fail = func(outbox.Delivery[runtimetest.Said]) error {
				mu.Lock()
				defer mu.Unlock()
				if failures > 0 && rand.IntN(3) == 0 {
					failures--
					return runtimetest.ErrHandler
				}
				return nil
			}
			spec := listener.Spec{ParkKeys: park, Shards: 3, Retry: outbox.Retry{MaxAttempts: 1000, BaseDelay: 1e6, MaxDelay: 1e7}}
			for range 2 {
				runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, spec, listener.Config{Concurrency: 4, BatchSize: 10}, h))
			}
			pgtest.Settles(t, pool, 3, "SELECT count(*) FROM outbox.listeners")
			var running sync.WaitGroup
			running.Go(func() {
				for n := range each {
					ms := make([]outbox.Message, keys)
					for k := range ms {
						ms[k] = saidMessage(tenant, string(rune('a'+k)), n+1)
					}
					runtimetest.EnqueueAll(t, pool, ms...)
				}
			})
			for k := range forgotten {
				running.Go(func() {
					for range 5 {
						_, err := a.Forget(t.Context(), undelivered(ofOrder(string(rune('a'+k)))), admin.Act{Who: "ann"})
						if err != nil && !strings.Contains(err.Error(), "unknown entity type") {
							t.Error(err)
						}
					}
				})
			}
			running.Wait()
			for k := range forgotten {
				forget(t, a, undelivered(ofOrder(string(rune('a'+k)))))
			}
			pgtest.Settles(t, pool, 0, `SELECT count(*) FROM outbox.listeners AS l
				WHERE l.in_batch OR l.high_seq < (SELECT max(seq) FROM outbox.log) OR cardinality(l.ahead_seqs) > 0
				   OR EXISTS (SELECT FROM outbox.parked)`)
			last := make(map[string]int)
			for _, d := range h.Got {
				if n := d.Payload.N; n > last[d.Payload.Key] {
					if d.Payload.Key >= string(rune('a'+forgotten)) {
						require.Equal(t, last[d.Payload.Key]+1, n, "key %s is out of order", d.Payload.Key)
					}
					last[d.Payload.Key] = n
				}
			}
			for k := forgotten; k < keys; k++ {
				require.Equal(t, each, last[string(rune('a'+k))])
			}
			require.Equal(t, (keys-forgotten)*each, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.log"))
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
		})
	}
}
