package outbox_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestEventsAfterAFailureAreNotRedelivered: events behind one that failed are done and stay so, for this process after the
// retry, and for another after a graceful stop.
func TestEventsAfterAFailureAreNotRedelivered(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.fail = failing("a1", "c1")
	cfg := outbox.ListenerConfig{Concurrency: 3}
	l := listenTo(t, pool, outbox.ListenerSpec{}, cfg, h)
	putAll(t, pool, "a1", "b1", "a2", "b2", "c1", "d1")
	require.Equal(t, outbox.DrainReport{Delivered: 3, Retried: 2}, drainAll(t, l))
	require.ElementsMatch(t, []string{"a1", "b1", "b2", "c1", "d1"}, h.calls())
	require.Equal(t, "{2,4,5,6} {0,0,1,0}", value[string](t, pool, "SELECT concat(ahead_seqs, ' ', ahead_attempts) FROM outbox.listeners"))
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Retried: 2}, drainAll(t, l))
	require.ElementsMatch(t, []string{"a1", "c1"}, h.calls())
	retryNow(t, pool)
	h.fail = failing("c1")
	other := listenTo(t, pool, outbox.ListenerSpec{}, cfg, h)
	require.Equal(t, outbox.DrainReport{Delivered: 2, Retried: 1}, drainAll(t, other))
	require.ElementsMatch(t, []string{"a1", "a2", "c1"}, h.calls())
	retryNow(t, pool)
	h.fail = nil
	putAll(t, pool, "e1")
	require.Equal(t, outbox.DrainReport{Delivered: 2}, drainAll(t, l))
	require.Equal(t, []string{"c1", "e1"}, h.calls())
	require.Equal(t, 4, h.got[len(h.got)-2].Attempt)
	require.Equal(t, 1, h.got[len(h.got)-1].Attempt)
	require.Equal(t, "{} {}", value[string](t, pool, "SELECT concat(ahead_seqs, ' ', ahead_attempts) FROM outbox.listeners"))
}

// TestListenerReadsAtMostABatchPastAFailure bounds what is done ahead of the cursor.
func TestListenerReadsAtMostABatchPastAFailure(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.fail = failing("a1")
	l := listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{Concurrency: 2, BatchSize: 3}, h)
	putAll(t, pool, "a1", "b1", "b2", "b3", "b4", "b5")
	require.Equal(t, outbox.DrainReport{Delivered: 2, Retried: 1}, drainAll(t, l))
	h.fail = nil
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Delivered: 4}, drainAll(t, l))
	require.Equal(t, []string{"b1", "b2", "a1", "b3", "b4", "b5"}, h.names())
}

// TestListenerBacksOff: the delay doubles from attempt to attempt, with jitter, up to its limit, and is the database's.
func TestListenerBacksOff(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := newNotes()
			h.fail = failing("a1")
			l := listenTo(t, pool, outbox.ListenerSpec{
				ParkKeys: park, Retry: outbox.Retry{MaxAttempts: 9, BaseDelay: time.Minute, MaxDelay: 5 * time.Minute},
			}, outbox.ListenerConfig{}, h)
			putAll(t, pool, "a1")
			want := time.Minute
			for range 5 {
				drainAll(t, l)
				delay := value[time.Duration](t, pool, "SELECT max(retry_after) - statement_timestamp() FROM "+tableOf(park))
				require.GreaterOrEqual(t, delay, want/2-10*time.Second)
				require.LessOrEqual(t, delay, want)
				require.Equal(t, "handler failed", value[string](t, pool, "SELECT max(last_error) FROM "+tableOf(park)))
				require.Equal(t, outbox.DrainReport{}, drainAll(t, l))
				retryNow(t, pool)
				want = min(2*want, 5*time.Minute)
			}
		})
	}
}

func TestListenerHonoursRetryAfter(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := newNotes()
			h.fail = func(outbox.Delivery[said]) error { return outbox.RetryAfter(time.Hour, errHandler) }
			l := listenTo(t, pool, outbox.ListenerSpec{ParkKeys: park}, outbox.ListenerConfig{}, h)
			putAll(t, pool, "a1")
			require.Equal(t, outbox.DrainReport{Retried: 1}, drainAll(t, l))
			delay := value[time.Duration](t, pool, "SELECT max(retry_after) - statement_timestamp() FROM "+tableOf(park))
			require.InDelta(t, time.Hour, delay, float64(30*time.Second))
		})
	}
}

// TestListenerKeepsEachBackOffOfMany: an event that waits for an hour is not tried with one that waits for milliseconds.
func TestListenerKeepsEachBackOffOfMany(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	h.fail = func(d outbox.Delivery[said]) error {
		switch {
		case d.Payload == said{"b", 1} && d.Attempt < 5:
			return errHandler
		case d.Payload.Key == "a":
			return outbox.RetryAfter(time.Hour, errHandler)
		}
		return nil
	}
	l := listenTo(t, pool, outbox.ListenerSpec{Retry: soon(9)}, outbox.ListenerConfig{Concurrency: 2, PollInterval: 5 * time.Millisecond}, h)
	putAll(t, pool, "a1", "b1", "a2", "b2")
	stop := startListener(t, l)
	h.await(t, 2)
	settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE retry_after > now() + interval '50 min' AND last_error = 'handler failed'")
	stop()
	require.Equal(t, []string{"b1", "b2"}, h.names())
	require.Equal(t, 5, h.got[0].Attempt)
	seen := make(map[string]int)
	for _, name := range h.calls() {
		seen[name]++
	}
	require.Equal(t, map[string]int{"a1": 1, "b1": 5, "b2": 1}, seen)
}

func TestListenerPermanentErrorIsDeadImmediately(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		pool := pgtest.Database(t)
		h := newNotes()
		h.fail = func(d outbox.Delivery[said]) error {
			if d.Payload.Key == "x" {
				return fmt.Errorf("call: %w", outbox.Permanent(errHandler))
			}
			return nil
		}
		l := listenTo(t, pool, outbox.ListenerSpec{ParkKeys: park}, outbox.ListenerConfig{}, h)
		putAll(t, pool, "x1", "a1", "x2")
		require.Equal(t, outbox.DrainReport{Delivered: 1, Dead: 2}, drainAll(t, l))
		require.Equal(t, "1 call: handler failed, 1 call: handler failed",
			value[string](t, pool, "SELECT string_agg(attempts || ' ' || error, ', ') FROM outbox.dead_letters"))
	}
}

// TestListenerSurvivesItsHandlers: a handler that panics, or ends its goroutine, has failed with its stack as the reason.
func TestListenerSurvivesItsHandlers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		breaks func()
		want   string
	}{
		"panic":         {func() { panic("oh") }, "handler panicked: oh\n"},
		"nil pointer":   {func() { _ = *(*int)(nil) }, "handler panicked: runtime error: invalid memory address or nil pointer dereference\n"},
		"Goexit":        {runtime.Goexit, "handler called runtime.Goexit\n"},
		"hostile panic": {func() { panic("\x00\xff" + strings.Repeat("x", 1<<20)) }, "handler panicked: ??xxx"},
	} {
		for _, concurrency := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, concurrency %d", name, concurrency), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				h := newNotes()
				h.fail = func(d outbox.Delivery[said]) error {
					if d.Payload.Key == "x" {
						c.breaks()
					}
					return nil
				}
				l := listenTo(t, pool, outbox.ListenerSpec{Retry: soon(1)}, outbox.ListenerConfig{Concurrency: concurrency}, h)
				putAll(t, pool, "x1", "x2", "a1", "x3", "x4", "b1", "a2")
				require.Equal(t, outbox.DrainReport{Delivered: 3, Dead: 4}, drainAll(t, l))
				text := value[string](t, pool, "SELECT min(error) FROM outbox.dead_letters")
				require.True(t, strings.HasPrefix(text, c.want), text)
				require.LessOrEqual(t, len(text), 2048)
				if name != "hostile panic" {
					require.Contains(t, text, "outbox_test.")
				}
			})
		}
	}
}

// TestListenerHandlesKeysConcurrently: with room for three, handlers of three keys run at once, never two of one, and no more
// than three.
func TestListenerHandlesKeysConcurrently(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	var all gauge
	var mu sync.Mutex
	keys := make(map[string]*gauge)
	full := make(chan struct{})
	h.fail = func(d outbox.Delivery[said]) error {
		mu.Lock()
		key := keys[d.Payload.Key]
		if key == nil {
			key = &gauge{}
			keys[d.Payload.Key] = key
		}
		mu.Unlock()
		key.enter()
		defer key.leave()
		defer all.leave()
		if all.enter() == 3 {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		<-full
		return nil
	}
	l := listenTo(t, pool, outbox.ListenerSpec{Concurrency: 3}, outbox.ListenerConfig{}, h)
	c := newCrowd("a", "b", "c", "d", "e")
	c.enqueue(t, pool, 95)
	putAll(t, pool, "v1", "w1", "x1", "y1", "z1") // three at least
	require.Equal(t, outbox.DrainReport{Delivered: 100}, drainAll(t, l))
	require.Equal(t, 100, h.inOrder(t))
	require.EqualValues(t, 3, all.most.Load())
	for key, g := range keys {
		require.EqualValues(t, 1, g.most.Load(), "key %s", key)
	}
}

// TestListenerOfUndecodablePayloads: what does not fit is dead at once; what is newer than this process waits for one
// that knows it.
func TestListenerOfUndecodablePayloads(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	l := listenTo(t, pool, outbox.ListenerSpec{Retry: late}, outbox.ListenerConfig{}, h)
	m := outbox.Message{Namespace: "test", Topic: "said", TenantID: outbox.Tenant(tenantA), Log: true}
	bad, newer := m, m
	bad.Payload = []byte(`{"key": "a", "n": "not a number: secret"}`)
	newer.Payload, newer.Version = []byte(`{"key": "a", "n": 2}`), 2
	enqueueAll(t, pool, bad)
	enqueueAll(t, pool, newer)
	put1(t, pool, "a", 3)
	require.Equal(t, outbox.DrainReport{Dead: 1, Retried: 1}, drainAll(t, l))
	require.Equal(t, `decode payload: field "n" does not fit int`, value[string](t, pool, "SELECT error FROM outbox.dead_letters"))
	require.Equal(t, "payload has version 2, this process knows 1", value[string](t, pool, "SELECT last_error FROM outbox.listeners"))
	execute(t, pool, "INSERT INTO outbox.log (namespace, topic, payload) VALUES ('test', 'said', 'null')")
	topic := saidTopic
	topic = altered(topic, func(s *outbox.TopicSpec) { s.Version = 2 })
	knows, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "ears"}, outbox.ListenerConfig{Logger: quiet()}, outbox.Listen(topic, h, h.handle))
	require.NoError(t, err)
	retryNow(t, pool)
	require.Equal(t, outbox.DrainReport{Delivered: 2, Dead: 1}, drainAll(t, knows))
	require.Equal(t, []string{"a2", "a3"}, h.names())
	require.Equal(t, 2, h.got[0].Attempt)
	require.Equal(t, "decode payload: it is null, which is not a valid outbox_test.said",
		value[string](t, pool, "SELECT error FROM outbox.dead_letters ORDER BY no DESC LIMIT 1"))
}

// TestListenerConfiguredMaxAttemptsWins: over the YAML's, and at once also when events have failed more often already.
func TestListenerConfiguredMaxAttemptsWins(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		pool := pgtest.Database(t)
		h := newNotes()
		h.fail = failing("a1")
		spec := outbox.ListenerSpec{ParkKeys: park, Retry: outbox.Retry{MaxAttempts: 9}}
		l := listenTo(t, pool, spec, outbox.ListenerConfig{}, h)
		putAll(t, pool, "a1")
		for range 4 {
			require.Equal(t, outbox.DrainReport{Retried: 1}, drainAll(t, l))
			retryNow(t, pool)
		}
		require.Len(t, h.calls(), 4)
		lowered := listenTo(t, pool, spec, outbox.ListenerConfig{MaxAttempts: 3}, h)
		putAll(t, pool, "a2")
		require.Equal(t, outbox.DrainReport{Delivered: 1, Dead: 1}, drainAll(t, lowered))
		require.Equal(t, []string{"a2"}, h.calls(), "no attempt is left for a1")
		require.Equal(t, "3 attempts spent: the process that handled it died each time, or the limit was lowered",
			value[string](t, pool, "SELECT attempts || ' ' || error FROM outbox.dead_letters"))
		require.Equal(t, 3, h.got[0].MaxAttempts)
	}
}

// TestListenerOfEventsWithoutKey: each stands for itself. Blocking, the failed one holds up all; parking, it alone is
// parked; and many are handled at once.
func TestListenerOfEventsWithoutKey(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		pool := pgtest.Database(t)
		h := newNotes()
		h.fail = failing("x1")
		l := listenTo(t, pool, outbox.ListenerSpec{ParkKeys: park}, outbox.ListenerConfig{}, h)
		inTx(t, pool, func(tx pgx.Tx) {
			_, err := looseTopic.Untyped().EnqueueMany(t.Context(), tx, []said{{"a", 1}, {"x", 1}, {"b", 1}})
			require.NoError(t, err)
		})
		drainAll(t, l)
		require.Equal(t, map[bool][]string{false: {"a1"}, true: {"a1", "b1"}}[park], h.names())
		h.fail = nil
		retryNow(t, pool)
		drainAll(t, l)
		require.ElementsMatch(t, []string{"a1", "b1", "x1"}, h.names())
	}

	pool := pgtest.Database(t)
	h := newNotes()
	h.hold = make(chan struct{})
	l := listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{Concurrency: 5}, h)
	inTx(t, pool, func(tx pgx.Tx) {
		_, err := looseTopic.Untyped().EnqueueMany(t.Context(), tx, make([]said, 5))
		require.NoError(t, err)
	})
	stop := startListener(t, l)
	for range 5 {
		receive(t, h.started, "five handlers at once")
	}
	close(h.hold)
	h.await(t, 5)
	stop()
}

// TestListenerSeesWhatWasEnqueued: every field of an event reaches the handler.
func TestListenerSeesWhatWasEnqueued(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := newNotes()
	l := listenTo(t, pool, outbox.ListenerSpec{}, outbox.ListenerConfig{}, h)
	m := outbox.Message{
		Namespace: "test", Topic: "said", Version: 1, TenantID: outbox.Tenant(tenantA), DedupeKey: tenantA.String() + "/1",
		PartitionKey: "room 1", Entity: outbox.Entity{Type: "room", ID: "1", Version: 7}, Headers: map[string]string{"trace": "t1"},
		Payload: []byte(`{"key": "a", "n": 9007199254740993}`), Log: true,
	}
	receipts := enqueueAll(t, pool, m)
	drainAll(t, l)
	require.Len(t, h.got, 1)
	d := h.got[0]
	require.WithinDuration(t, time.Now(), d.CreatedAt, time.Hour)
	d.CreatedAt = time.Time{}
	require.Equal(t, outbox.Delivery[said]{
		Event: outbox.Event{
			ID: receipts[0].ID, Namespace: "test", Topic: "said", Version: 1, TenantID: outbox.Tenant(tenantA), DedupeKey: m.DedupeKey,
			PartitionKey: "room 1", Entity: m.Entity, Headers: m.Headers, Attempt: 1, MaxAttempts: 25,
		},
		Payload: said{Key: "a", N: 9007199254740993},
	}, d)
}
