package outbox_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerParkedHeadDiesAndItsKeyContinues: the attempts of each event count for itself, a permanent error ends it at
// once, and what follows is handled in order.
func TestListenerParkedHeadDiesAndItsKeyContinues(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.fail = func(d outbox.Delivery[said]) error {
		switch d.Payload {
		case said{"x", 1}, said{"x", 3}:
			return errHandler
		case said{"x", 4}:
			return outbox.Permanent(errHandler)
		}
		return nil
	}
	l := listenTo(t, pool, outbox.ListenerSpec{ParkKeys: true, Retry: outbox.Retry{MaxAttempts: 2}}, outbox.ListenerConfig{}, h)
	putAll(t, pool, "x1", "x2", "a1", "x3", "x4", "x5")
	require.Equal(t, outbox.DrainReport{Delivered: 1, Retried: 1}, drainAll(t, l))
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Delivered: 1, Retried: 1, Dead: 1}, drainAll(t, l), "x1 is dead, x2 done, x3 failed")
	putAll(t, pool, "x6", "b1")
	require.Equal(t, outbox.DrainReport{Delivered: 1}, drainAll(t, l))
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Delivered: 2, Dead: 2}, drainAll(t, l), "x3 and x4 are dead, x5 and x6 done")
	require.Equal(t, []string{"x1", "a1", "x1", "x2", "x3", "b1", "x3", "x4", "x5", "x6"}, h.calls())
	require.Equal(t, "x1 2, x3 2, x4 1", value[string](t, pool,
		"SELECT string_agg(concat(payload->>'key', payload->>'n', ' ', attempts), ', ' ORDER BY no) FROM outbox.dead_letters"))
	require.Zero(t, value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
	for _, d := range h.got {
		require.Equal(t, 1, d.Attempt)
	}
}

// TestListenerParkedEventsOutliveTheirProcess: another process goes on with what was parked, in order; one that does
// not parked itself, too.
func TestListenerParkedEventsOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.fail = failing("x1")
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{ParkKeys: true}, outbox.ListenerConfig{}, h))
	putAll(t, pool, "x1", "a1", "x2", "y1")
	drainAll(t, listenTo(t, pool, outbox.ListenerSpec{ParkKeys: true}, outbox.ListenerConfig{}, h))
	h.fail = failing("y2")
	putAll(t, pool, "x3", "y2", "a2")
	other := listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{}, h)
	require.Equal(t, outbox.DrainReport{Retried: 1}, drainAll(t, other), "y2 blocks")
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Delivered: 3, Retried: 1}, drainAll(t, other))
	h.fail = nil
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, other))
	require.Equal(t, []string{"a1", "y1", "x1", "x2", "x3", "y2", "a2"}, h.names())
}

// TestListenerParkedKeysAreLimited: when so many keys fail, it is not they. The listener waits at the next that fails,
// and goes on when there is room.
func TestListenerParkedKeysAreLimited(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 3} {
		t.Run(fmt.Sprintf("concurrency %d", concurrency), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := newNotes()
			h.fail = failing("w1", "x1", "y1", "z1")
			l := listenTo(t, pool, outbox.ListenerSpec{ParkKeys: true}, outbox.ListenerConfig{Concurrency: concurrency}, h)
			outbox.LimitParkedKeys(l, 2)
			for _, name := range []string{"w1", "x1"} { // the limit is looked at once a lease
				putAll(t, pool, name)
				drainAll(t, l)
			}
			putAll(t, pool, "a1", "y1", "b1", "x2", "y2", "z1")
			drainAll(t, l)
			require.Equal(t, 2, value[int](t, pool, "SELECT count(*)::int FROM outbox.parked WHERE retry_after IS NOT NULL"))
			if concurrency == 1 {
				require.Equal(t, []string{"a1"}, h.names(), "blocked")
				require.Equal(t, "handler failed 1", value[string](t, pool, "SELECT last_error || ' ' || retry_count FROM outbox.listeners"))
			} else {
				require.ElementsMatch(t, []string{"a1", "b1"}, h.names(), "as far as a batch goes")
				require.Equal(t, 1, value[int](t, pool, "SELECT count(*)::int FROM outbox.parked WHERE retry_after IS NULL"), "x2")
			}
			h.fail = failing("y1", "z1")
			retryNow(t, pool)
			for range 3 {
				drainAll(t, l)
				retryNow(t, pool)
			}
			require.Equal(t, "y z", value[string](t, pool, "SELECT string_agg(key, ' ' ORDER BY key) FROM outbox.parked WHERE retry_after IS NOT NULL"))
			h.fail = nil
			drainAll(t, l)
			require.ElementsMatch(t, []string{"a1", "b1", "w1", "x1", "x2", "y1", "y2", "z1"}, h.names())
			require.Less(t, slices.Index(h.names(), "x1"), slices.Index(h.names(), "x2"))
			require.Less(t, slices.Index(h.names(), "y1"), slices.Index(h.names(), "y2"))
		})
	}
}

// TestListenerManyParked: more keys, and more events of a key, than one lease takes.
func TestListenerManyParked(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := newNotes()
		h.fail = func(d outbox.Delivery[said]) error {
			if d.Payload.N == 1 && d.Attempt == 1 {
				return errHandler
			}
			return nil
		}
		l := listenAs(t, pool, transactional, outbox.ListenerSpec{ParkKeys: true}, outbox.ListenerConfig{}, h)
		c := newCrowd()
		for i := range 50 {
			c.last[fmt.Sprint("k", i)] = 0
		}
		c.enqueue(t, pool, 500)
		for n := range 60 { // one key more than one lease takes of it
			put1(t, pool, "long", n+1)
		}
		keys := value[int](t, pool, "SELECT count(DISTINCT partition_key)::int FROM outbox.log")
		require.Equal(t, outbox.DrainReport{Retried: keys}, drainAll(t, l))
		require.Equal(t, 560, value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
		retryNow(t, pool)
		require.Equal(t, outbox.DrainReport{Delivered: 560}, drainAll(t, l))
		require.Equal(t, 560, h.inOrder(t))
	})
}

// TestListenerRetriesParkedInTime: a listener that sleeps until the bell rings, or nearly, is up for a retry.
func TestListenerRetriesParkedInTime(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := newNotes()
		h.fail = func(d outbox.Delivery[said]) error {
			if d.Payload == (said{"x", 1}) && d.Attempt < 4 {
				return errHandler
			}
			return nil
		}
		retry := outbox.Retry{MaxAttempts: 5, BaseDelay: 50 * time.Millisecond, MaxDelay: 100 * time.Millisecond}
		cfg := outbox.ListenerConfig{LeaseDuration: 3 * rarely, PollInterval: rarely}
		stop := startListener(t, listenAs(t, pool, transactional, outbox.ListenerSpec{ParkKeys: true, Retry: retry}, cfg, h))
		begin := time.Now()
		putAll(t, pool, "x1", "x2", "a1")
		h.await(t, 3)
		require.Less(t, time.Since(begin), promptly)
		stop()
		require.Equal(t, []string{"a1", "x1", "x2"}, h.names())
		require.Equal(t, 4, h.got[1].Attempt)
	})
}

// TestListenerMissesNoDueTime: a retry falls due right between two questions, whether there is something to do and until when
// there is not.
func TestListenerMissesNoDueTime(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			slow, gate := gated(t, pool, "name: ListenerWait ")
			between := func() { settles(t, pool, 0, "SELECT count(*) FROM "+tableOf(park)+" WHERE retry_after > now()") }
			gate.onPass(between)
			h := newNotes()
			h.fail = func(d outbox.Delivery[said]) error {
				if d.Attempt < 3 {
					return errHandler
				}
				return nil
			}
			retry := outbox.Retry{MaxAttempts: 5, BaseDelay: 200 * time.Millisecond, MaxDelay: 200 * time.Millisecond}
			cfg := outbox.ListenerConfig{LeaseDuration: 3 * rarely, PollInterval: rarely, Wake: outbox.WakePoll}
			l := listenTo(t, pool, outbox.ListenerSpec{ParkKeys: park, Retry: retry}, cfg, h)
			outbox.ThroughPool(l, slow)
			put1(t, pool, "a", 1)
			begin := time.Now()
			startListener(t, l)
			h.await(t, 1)
			require.Less(t, time.Since(begin), promptly)
		})
	}
}

// TestListenerParkedEventsOfARemovedTopic: what was parked when the listener still read its topic goes to the dead letters.
func TestListenerParkedEventsOfARemovedTopic(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.fail = func(outbox.Delivery[said]) error { return errHandler }
	l := listenTo(t, pool, outbox.ListenerSpec{ParkKeys: true}, outbox.ListenerConfig{}, h)
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := looseTopic.Untyped().Enqueue(t.Context(), tx, said{"a", 1})
		require.NoError(t, err)
	})
	drainAll(t, l)
	retryNow(t, pool)
	without, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "ears"}, outbox.ListenerConfig{Logger: quiet()}, outbox.Listen(saidTopic, h, h.handle))
	require.NoError(t, err)
	require.Equal(t, outbox.DrainReport{Dead: 1}, drainAll(t, without))
	require.Equal(t, "test/loose: handler is not implemented", value[string](t, pool, "SELECT error FROM outbox.dead_letters"))
}

// TestListenerDeadLetterIsACopy: of the event, whole, with the listener, its error, its attempts and its times, whether it
// died in place or parked. Each listener has its own.
func TestListenerDeadLetterIsACopy(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	full := outbox.Message{
		Namespace: "test", Topic: "said", Version: 1, TenantID: outbox.Tenant(tenantA), DedupeKey: tenantA.String() + "/1",
		PartitionKey: "room 1", Entity: outbox.Entity{Type: "room", ID: "1", Version: 7}, Headers: map[string]string{"trace": "t1"},
		Payload: []byte(`{"key": "a", "n": 1}`), Log: true,
	}
	bare := outbox.Message{Namespace: "test", Topic: "said", Payload: []byte(`{"key": "b", "n": 1}`), Log: true}
	enqueueAll(t, pool, full, bare)
	h := newNotes()
	h.fail = func(outbox.Delivery[said]) error { return errHandler }
	for name, park := range map[string]bool{"blocker": false, "parker": true} {
		l := listenTo(t, pool, outbox.ListenerSpec{Name: name, ParkKeys: park, Retry: outbox.Retry{MaxAttempts: 2}}, outbox.ListenerConfig{}, h)
		for range 3 {
			drainAll(t, l)
			retryNow(t, pool)
		}
	}
	require.Equal(t, 4, value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters"))
	require.Equal(t, 4, value[int](t, pool, `SELECT count(*)::int
		FROM outbox.dead_letters AS d
		JOIN outbox.log AS g ON (to_jsonb(d) - '{no,listener,attempts,error,died_at}'::text[]) = (to_jsonb(g) - 'xid'::text)
		WHERE d.listener IN ('blocker', 'parker') AND d.attempts = 2 AND d.error = 'handler failed'
			AND d.died_at BETWEEN g.created_at AND statement_timestamp()`))
}
