package listener_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerParkedHeadDiesAndItsKeyContinues: attempts count per event, a permanent error makes the event dead
// immediately, and the events after it are handled in order.
func TestListenerParkedHeadDiesAndItsKeyContinues(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		switch d.Payload {
		case runtimetest.Said{Key: "x", N: 1}, runtimetest.Said{Key: "x", N: 3}:
			return runtimetest.ErrHandler
		case runtimetest.Said{Key: "x", N: 4}:
			return outbox.Permanent(runtimetest.ErrHandler)
		}
		return nil
	}
	l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true, Retry: outbox.Retry{MaxAttempts: 2}}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "x1", "x2", "a1", "x3", "x4", "x5")
	require.Equal(t, listener.Report{Delivered: 1, Retried: 1}, runtimetest.DrainAll(t, l))
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Delivered: 1, Retried: 1, Dead: 1}, runtimetest.DrainAll(t, l), "x1 is dead, x2 done, x3 failed")
	runtimetest.PutAll(t, pool, "x6", "b1")
	require.Equal(t, listener.Report{Delivered: 1}, runtimetest.DrainAll(t, l))
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Delivered: 2, Dead: 2}, runtimetest.DrainAll(t, l), "x3 and x4 are dead, x5 and x6 done")
	require.Equal(t, []string{"x1", "a1", "x1", "x2", "x3", "b1", "x3", "x4", "x5", "x6"}, h.Calls())
	require.Equal(t, "x1 2, x3 2, x4 1", pgtest.Value[string](t, pool,
		"SELECT string_agg(concat(payload->>'key', payload->>'n', ' ', attempts), ', ' ORDER BY no) FROM outbox.dead_letters"))
	require.Zero(t, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
	for _, d := range h.Got {
		require.Equal(t, 1, d.Attempt)
	}
}

// TestListenerParkedEventsOutliveTheirProcess: another process continues with the parked events, in order, even if it
// does not park itself.
func TestListenerParkedEventsOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.Failing("x1")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true}, listener.Config{}, h))
	runtimetest.PutAll(t, pool, "x1", "a1", "x2", "y1")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true}, listener.Config{}, h))
	h.Fail = runtimetest.Failing("y2")
	runtimetest.PutAll(t, pool, "x3", "y2", "a2")
	other := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	require.Equal(t, listener.Report{Retried: 1}, runtimetest.DrainAll(t, other), "y2 blocks")
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Delivered: 3, Retried: 1}, runtimetest.DrainAll(t, other))
	h.Fail = nil
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, other))
	require.Equal(t, []string{"a1", "y1", "x1", "x2", "x3", "y2", "a2"}, h.Names())
}

// TestListenerParkedKeysAreLimited: when the limit of parked keys is reached, the listener waits at the next failing
// event, and continues when there is room.
func TestListenerParkedKeysAreLimited(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, concurrency := range []int{1, 3} {
		t.Run(fmt.Sprintf("concurrency %d", concurrency), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := runtimetest.NewNotes()
			h.Fail = runtimetest.Failing("w1", "x1", "y1", "z1")
			l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true}, listener.Config{Concurrency: concurrency}, h)
			listener.LimitParkedKeys(l, 2)
			for _, name := range []string{"w1", "x1"} { // the limit is checked once per lease
				runtimetest.PutAll(t, pool, name)
				runtimetest.DrainAll(t, l)
			}
			runtimetest.PutAll(t, pool, "a1", "y1", "b1", "x2", "y2", "z1")
			runtimetest.DrainAll(t, l)
			require.Equal(t, 2, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.parked WHERE retry_after IS NOT NULL"))
			if concurrency == 1 {
				require.Equal(t, []string{"a1"}, h.Names(), "blocked")
				require.Equal(t, "handler failed 1", pgtest.Value[string](t, pool, "SELECT last_error || ' ' || retry_count FROM outbox.listeners"))
			} else {
				require.ElementsMatch(t, []string{"a1", "b1"}, h.Names(), "as far as a batch goes")
				require.Equal(t, 1, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.parked WHERE retry_after IS NULL"), "x2")
			}
			h.Fail = runtimetest.Failing("y1", "z1")
			runtimetest.RetryNow(t, pool)
			for range 3 {
				runtimetest.DrainAll(t, l)
				runtimetest.RetryNow(t, pool)
			}
			require.Equal(t, "y z", pgtest.Value[string](t, pool, "SELECT string_agg(key, ' ' ORDER BY key) FROM outbox.parked WHERE retry_after IS NOT NULL"))
			h.Fail = nil
			runtimetest.DrainAll(t, l)
			require.ElementsMatch(t, []string{"a1", "b1", "w1", "x1", "x2", "y1", "y2", "z1"}, h.Names())
			require.Less(t, slices.Index(h.Names(), "x1"), slices.Index(h.Names(), "x2"))
			require.Less(t, slices.Index(h.Names(), "y1"), slices.Index(h.Names(), "y2"))
		})
	}
}

// TestListenerManyParked: more keys, and more events per key, than one lease takes.
func TestListenerManyParked(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload.N == 1 && d.Attempt == 1 {
				return runtimetest.ErrHandler
			}
			return nil
		}
		l := runtimetest.ListenAs(t, pool, transactional, listener.Spec{ParkKeys: true}, listener.Config{}, h)
		c := runtimetest.NewCrowd()
		for i := range 50 {
			c.Last[fmt.Sprint("k", i)] = 0
		}
		c.Enqueue(t, pool, 500)
		for n := range 60 { // one event of the key more than a lease takes
			runtimetest.Put(t, pool, "long", n+1)
		}
		keys := pgtest.Value[int](t, pool, "SELECT count(DISTINCT partition_key)::int FROM outbox.log")
		require.Equal(t, listener.Report{Retried: keys}, runtimetest.DrainAll(t, l))
		require.Equal(t, 560, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.parked"))
		runtimetest.RetryNow(t, pool)
		require.Equal(t, listener.Report{Delivered: 560}, runtimetest.DrainAll(t, l))
		require.Equal(t, 560, h.InOrder(t))
	})
}

// TestListenerRetriesParkedInTime: a listener that hardly ever polls wakes up for a retry.
func TestListenerRetriesParkedInTime(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload == (runtimetest.Said{Key: "x", N: 1}) && d.Attempt < 4 {
				return runtimetest.ErrHandler
			}
			return nil
		}
		retry := outbox.Retry{MaxAttempts: 5, BaseDelay: 50 * time.Millisecond, MaxDelay: 100 * time.Millisecond}
		cfg := listener.Config{LeaseDuration: 3 * runtimetest.Rarely, PollInterval: runtimetest.Rarely}
		stop := runtimetest.StartListener(t, runtimetest.ListenAs(t, pool, transactional, listener.Spec{ParkKeys: true, Retry: retry}, cfg, h))
		begin := time.Now()
		runtimetest.PutAll(t, pool, "x1", "x2", "a1")
		h.Await(t, 3)
		require.Less(t, time.Since(begin), runtimetest.Promptly)
		stop()
		require.Equal(t, []string{"a1", "x1", "x2"}, h.Names())
		require.Equal(t, 4, h.Got[1].Attempt)
	})
}

// TestListenerMissesNoDueTime: a retry falls due right between two queries, for whether there is something to do and
// for when there will be.
func TestListenerMissesNoDueTime(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			slow, gate := runtimetest.NewGate(t, pool, "name: ListenerWait ")
			between := func() {
				pgtest.Settles(t, pool, 0, "SELECT count(*) FROM "+runtimetest.TableOf(park)+" WHERE retry_after > now()")
			}
			gate.OnPass(between)
			h := runtimetest.NewNotes()
			h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
				if d.Attempt < 3 {
					return runtimetest.ErrHandler
				}
				return nil
			}
			retry := outbox.Retry{MaxAttempts: 5, BaseDelay: 200 * time.Millisecond, MaxDelay: 200 * time.Millisecond}
			cfg := listener.Config{LeaseDuration: 3 * runtimetest.Rarely, PollInterval: runtimetest.Rarely, Wake: outbox.WakePoll}
			l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: park, Retry: retry}, cfg, h)
			listener.ThroughPool(l, slow)
			runtimetest.Put(t, pool, "a", 1)
			begin := time.Now()
			runtimetest.StartListener(t, l)
			h.Await(t, 1)
			require.Less(t, time.Since(begin), runtimetest.Promptly)
		})
	}
}

// TestListenerParkedEventsOfARemovedTopic: what was parked when the listener still read its topic goes to the dead letters.
func TestListenerParkedEventsOfARemovedTopic(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error { return runtimetest.ErrHandler }
	l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true}, listener.Config{}, h)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := runtimetest.LooseTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "a", N: 1})
		require.NoError(t, err)
	})
	runtimetest.DrainAll(t, l)
	runtimetest.RetryNow(t, pool)
	without, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger()}, listener.Handle(runtimetest.SaidTopic, h, h.Handle))
	require.NoError(t, err)
	require.Equal(t, listener.Report{Dead: 1}, runtimetest.DrainAll(t, without))
	require.Equal(t, "test/loose: handler is not implemented", pgtest.Value[string](t, pool, "SELECT error FROM outbox.dead_letters"))
}

// TestListenerDeadLetterIsACopy: a dead letter is a complete copy of the event, with the listener, the error, the
// attempts and the times, whether the event died in place or parked. Each listener has its own dead letter.
func TestListenerDeadLetterIsACopy(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	full := outbox.Message{
		Namespace: "test", Topic: "said", Version: 1, TenantID: outbox.Tenant(runtimetest.TenantA), DedupeKey: runtimetest.TenantA.String() + "/1",
		PartitionKey: "room 1", Entity: outbox.Entity{Type: "room", ID: "1", Version: 7}, Headers: map[string]string{"trace": "t1"},
		Payload: []byte(`{"key": "a", "n": 1}`), Log: true,
	}
	bare := outbox.Message{Namespace: "test", Topic: "said", Payload: []byte(`{"key": "b", "n": 1}`), Log: true}
	runtimetest.EnqueueAll(t, pool, full, bare)
	h := runtimetest.NewNotes()
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error { return runtimetest.ErrHandler }
	for name, park := range map[string]bool{"blocker": false, "parker": true} {
		l := runtimetest.ListenTo(t, pool, listener.Spec{Name: name, ParkKeys: park, Retry: outbox.Retry{MaxAttempts: 2}}, listener.Config{}, h)
		for range 3 {
			runtimetest.DrainAll(t, l)
			runtimetest.RetryNow(t, pool)
		}
	}
	require.Equal(t, 4, pgtest.Value[int](t, pool, "SELECT count(*)::int FROM outbox.dead_letters"))
	require.Equal(t, 4, pgtest.Value[int](t, pool, `SELECT count(*)::int
		FROM outbox.dead_letters AS d
		JOIN outbox.log AS g ON (to_jsonb(d) - '{no,listener,attempts,error,died_at,max_attempts,claim_no,locked_by,failures,lane,turn,key}'::text[]) = (to_jsonb(g) - 'xid'::text)
		WHERE d.listener IN ('blocker', 'parker') AND d.attempts = 2 AND d.error = 'handler failed'
			AND num_nulls(d.max_attempts, d.claim_no, d.locked_by, d.failures) = 4
			AND d.died_at BETWEEN g.created_at AND statement_timestamp()`))
}
