package listener_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestEventsAfterAFailureAreNotRedelivered: events after a failed one are done and are not handled again, neither by
// this process after the retry nor by another after a graceful stop.
func TestEventsAfterAFailureAreNotRedelivered(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.Failing("a1", "c1")
	cfg := listener.Config{Concurrency: 3}
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, cfg, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2", "b2", "c1", "d1")
	require.Equal(t, listener.Report{Delivered: 3, Retried: 2}, runtimetest.DrainAll(t, l))
	require.ElementsMatch(t, []string{"a1", "b1", "b2", "c1", "d1"}, h.Calls())
	require.Equal(t, "{2,4,5,6} {0,0,1,0}", pgtest.Value[string](t, pool, "SELECT concat(ahead_seqs, ' ', ahead_attempts) FROM outbox.listeners"))
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Retried: 2}, runtimetest.DrainAll(t, l))
	require.ElementsMatch(t, []string{"a1", "c1"}, h.Calls())
	runtimetest.RetryNow(t, pool)
	h.Fail = runtimetest.Failing("c1")
	other := runtimetest.ListenTo(t, pool, listener.Spec{}, cfg, h)
	require.Equal(t, listener.Report{Delivered: 2, Retried: 1}, runtimetest.DrainAll(t, other))
	require.ElementsMatch(t, []string{"a1", "a2", "c1"}, h.Calls())
	runtimetest.RetryNow(t, pool)
	h.Fail = nil
	runtimetest.PutAll(t, pool, "e1")
	require.Equal(t, listener.Report{Delivered: 2}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"c1", "e1"}, h.Calls())
	require.Equal(t, 4, h.Got[len(h.Got)-2].Attempt)
	require.Equal(t, 1, h.Got[len(h.Got)-1].Attempt)
	require.Equal(t, "{} {}", pgtest.Value[string](t, pool, "SELECT concat(ahead_seqs, ' ', ahead_attempts) FROM outbox.listeners"))
}

// TestListenerReadsAtMostABatchPastAFailure limits the events that are handled ahead of the cursor.
func TestListenerReadsAtMostABatchPastAFailure(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.Failing("a1")
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{Concurrency: 2, BatchSize: 3}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "b2", "b3", "b4", "b5")
	require.Equal(t, listener.Report{Delivered: 2, Retried: 1}, runtimetest.DrainAll(t, l))
	h.Fail = nil
	runtimetest.RetryNow(t, pool)
	require.Equal(t, listener.Report{Delivered: 4}, runtimetest.DrainAll(t, l))
	require.Equal(t, []string{"b1", "b2", "a1", "b3", "b4", "b5"}, h.Names())
}

// TestListenerBacksOff: the delay doubles with each attempt, with jitter, up to its limit, and the database measures
// it.
func TestListenerBacksOff(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprintf("park %t", park), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			h := runtimetest.NewNotes()
			h.Fail = runtimetest.Failing("a1")
			l := runtimetest.ListenTo(t, pool, listener.Spec{
				ParkKeys: park, Retry: outbox.Retry{MaxAttempts: 9, BaseDelay: time.Minute, MaxDelay: 5 * time.Minute},
			}, listener.Config{}, h)
			runtimetest.PutAll(t, pool, "a1")
			want := time.Minute
			for range 5 {
				runtimetest.DrainAll(t, l)
				delay := pgtest.Value[time.Duration](t, pool, "SELECT max(retry_after) - statement_timestamp() FROM "+runtimetest.TableOf(park))
				require.GreaterOrEqual(t, delay, want/2-10*time.Second)
				require.LessOrEqual(t, delay, want)
				require.Equal(t, "handler failed", pgtest.Value[string](t, pool, "SELECT max(last_error) FROM "+runtimetest.TableOf(park)))
				require.Equal(t, listener.Report{}, runtimetest.DrainAll(t, l))
				runtimetest.RetryNow(t, pool)
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
			h := runtimetest.NewNotes()
			h.Fail = func(outbox.Delivery[runtimetest.Said]) error {
				return outbox.RetryAfter(time.Hour, runtimetest.ErrHandler)
			}
			l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: park}, listener.Config{}, h)
			runtimetest.PutAll(t, pool, "a1")
			require.Equal(t, listener.Report{Retried: 1}, runtimetest.DrainAll(t, l))
			delay := pgtest.Value[time.Duration](t, pool, "SELECT max(retry_after) - statement_timestamp() FROM "+runtimetest.TableOf(park))
			require.InDelta(t, time.Hour, delay, float64(30*time.Second))
		})
	}
}

// TestListenerKeepsEachBackOffOfMany: an event that waits for an hour is not tried with one that waits for milliseconds.
func TestListenerKeepsEachBackOffOfMany(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		switch {
		case d.Payload == runtimetest.Said{Key: "b", N: 1} && d.Attempt < 5:
			return runtimetest.ErrHandler
		case d.Payload.Key == "a":
			return outbox.RetryAfter(time.Hour, runtimetest.ErrHandler)
		}
		return nil
	}
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: soon(9)}, listener.Config{Concurrency: 2, PollInterval: 5 * time.Millisecond}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2", "b2")
	stop := runtimetest.StartListener(t, l)
	h.Await(t, 2)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.listeners WHERE retry_after > now() + interval '50 min' AND last_error = 'handler failed'")
	stop()
	require.Equal(t, []string{"b1", "b2"}, h.Names())
	require.Equal(t, 5, h.Got[0].Attempt)
	seen := make(map[string]int)
	for _, name := range h.Calls() {
		seen[name]++
	}
	require.Equal(t, map[string]int{"a1": 1, "b1": 5, "b2": 1}, seen)
}

func TestListenerPermanentErrorIsDeadImmediately(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, park := range []bool{false, true} {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
			if d.Payload.Key == "x" {
				return fmt.Errorf("call: %w", outbox.Permanent(runtimetest.ErrHandler))
			}
			return nil
		}
		l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: park}, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "x1", "a1", "x2")
		require.Equal(t, listener.Report{Delivered: 1, Dead: 2}, runtimetest.DrainAll(t, l))
		require.Equal(t, "1 call: handler failed, 1 call: handler failed",
			pgtest.Value[string](t, pool, "SELECT string_agg(attempts || ' ' || error, ', ') FROM outbox.dead_letters"))
	}
}

// TestListenerSurvivesItsHandlers: a handler that panics or ends its goroutine has failed, and the error has its stack.
func TestListenerSurvivesItsHandlers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
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
				h := runtimetest.NewNotes()
				h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
					if d.Payload.Key == "x" {
						c.breaks()
					}
					return nil
				}
				l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: soon(1)}, listener.Config{Concurrency: concurrency}, h)
				runtimetest.PutAll(t, pool, "x1", "x2", "a1", "x3", "x4", "b1", "a2")
				require.Equal(t, listener.Report{Delivered: 3, Dead: 4}, runtimetest.DrainAll(t, l))
				text := pgtest.Value[string](t, pool, "SELECT min(error) FROM outbox.dead_letters")
				require.True(t, strings.HasPrefix(text, c.want), text)
				require.LessOrEqual(t, len(text), 2048)
				if name != "hostile panic" {
					require.Contains(t, text, "listener_test.")
				}
			})
		}
	}
}

// TestListenerHandlesKeysConcurrently: with a concurrency of three, handlers of three keys run concurrently, never two
// of one key, and never more than three.
func TestListenerHandlesKeysConcurrently(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	var all runtimetest.Gauge
	var mu sync.Mutex
	keys := make(map[string]*runtimetest.Gauge)
	full := make(chan struct{})
	h.Fail = func(d outbox.Delivery[runtimetest.Said]) error {
		mu.Lock()
		key := keys[d.Payload.Key]
		if key == nil {
			key = &runtimetest.Gauge{}
			keys[d.Payload.Key] = key
		}
		mu.Unlock()
		key.Enter()
		defer key.Leave()
		defer all.Leave()
		if all.Enter() == 3 {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		<-full
		return nil
	}
	l := runtimetest.ListenTo(t, pool, listener.Spec{Concurrency: 3}, listener.Config{}, h)
	c := runtimetest.NewCrowd("a", "b", "c", "d", "e")
	c.Enqueue(t, pool, 95)
	runtimetest.PutAll(t, pool, "v1", "w1", "x1", "y1", "z1") // at least three
	require.Equal(t, listener.Report{Delivered: 100}, runtimetest.DrainAll(t, l))
	require.Equal(t, 100, h.InOrder(t))
	require.EqualValues(t, 3, all.Most.Load())
	for key, g := range keys {
		require.EqualValues(t, 1, g.Most.Load(), "key %s", key)
	}
}

// TestListenerOfUndecodablePayloads: an event that does not decode is dead immediately. One with a newer version waits
// for a process that knows the version.
func TestListenerOfUndecodablePayloads(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h)
	m := outbox.Message{Namespace: "test", Topic: "said", TenantID: outbox.Tenant(runtimetest.TenantA), Log: true}
	bad, newer := m, m
	bad.Payload = []byte(`{"key": "a", "n": "not a number: secret"}`)
	newer.Payload, newer.Version = []byte(`{"key": "a", "n": 2}`), 2
	runtimetest.EnqueueAll(t, pool, bad)
	runtimetest.EnqueueAll(t, pool, newer)
	runtimetest.Put(t, pool, "a", 3)
	require.Equal(t, listener.Report{Dead: 1}, runtimetest.DrainAll(t, l))
	require.Equal(t, `decode payload: field "n" does not fit int`, pgtest.Value[string](t, pool, "SELECT error FROM outbox.dead_letters"))
	require.Zero(t, pgtest.Count(t, pool, "SELECT retry_count FROM outbox.listeners"))
	pgtest.Execute(t, pool, "INSERT INTO outbox.log (namespace, topic, payload) VALUES ('test', 'said', 'null')")
	topic := runtimetest.SaidTopic
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Version = 2 })
	knows, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger()}, listener.Handle(topic, h, h.Handle))
	require.NoError(t, err)
	require.Equal(t, listener.Report{Delivered: 2, Dead: 1}, runtimetest.DrainAll(t, knows))
	require.Equal(t, []string{"a2", "a3"}, h.Names())
	require.Equal(t, 1, h.Got[0].Attempt)
	require.Equal(t, "decode payload: it is null, which is not a valid runtimetest.Said",
		pgtest.Value[string](t, pool, "SELECT error FROM outbox.dead_letters ORDER BY no DESC LIMIT 1"))
}

// TestListenerConfiguredMaxAttemptsWins: the configured limit takes precedence over the YAML's, and applies immediately
// to events that have failed more often already.
func TestListenerConfiguredMaxAttemptsWins(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, park := range []bool{false, true} {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.Failing("a1")
		spec := listener.Spec{ParkKeys: park, Retry: outbox.Retry{MaxAttempts: 9}}
		l := runtimetest.ListenTo(t, pool, spec, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "a1")
		for range 4 {
			require.Equal(t, listener.Report{Retried: 1}, runtimetest.DrainAll(t, l))
			runtimetest.RetryNow(t, pool)
		}
		require.Len(t, h.Calls(), 4)
		lowered := runtimetest.ListenTo(t, pool, spec, listener.Config{MaxAttempts: 3}, h)
		runtimetest.PutAll(t, pool, "a2")
		require.Equal(t, listener.Report{Delivered: 1, Dead: 1}, runtimetest.DrainAll(t, lowered))
		require.Equal(t, []string{"a2"}, h.Calls(), "no attempt is left for a1")
		require.Equal(t, "3 attempts spent: the process that handled it died each time, or the limit was lowered",
			pgtest.Value[string](t, pool, "SELECT attempts || ' ' || error FROM outbox.dead_letters"))
		require.Equal(t, 3, h.Got[0].MaxAttempts)
	}
}

// TestListenerOfEventsWithoutKey: each event is its own key. In a blocking listener a failed event blocks all others.
// In a parking listener only the failed event is parked. Many are handled concurrently.
func TestListenerOfEventsWithoutKey(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, park := range []bool{false, true} {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.Failing("x1")
		l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: park}, listener.Config{}, h)
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := runtimetest.LooseTopic.EnqueueMany(t.Context(), tx, []runtimetest.Said{{Key: "a", N: 1}, {Key: "x", N: 1}, {Key: "b", N: 1}})
			require.NoError(t, err)
		})
		runtimetest.DrainAll(t, l)
		require.Equal(t, map[bool][]string{false: {"a1"}, true: {"a1", "b1"}}[park], h.Names())
		h.Fail = nil
		runtimetest.RetryNow(t, pool)
		runtimetest.DrainAll(t, l)
		require.ElementsMatch(t, []string{"a1", "b1", "x1"}, h.Names())
	}

	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	h.Hold = make(chan struct{})
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{Concurrency: 5}, h)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := runtimetest.LooseTopic.EnqueueMany(t.Context(), tx, make([]runtimetest.Said, 5))
		require.NoError(t, err)
	})
	stop := runtimetest.StartListener(t, l)
	for range 5 {
		pgtest.Receive(t, h.Started, "five concurrent handlers")
	}
	close(h.Hold)
	h.Await(t, 5)
	stop()
}

// TestListenerSeesWhatWasEnqueued: every field of an event reaches the handler.
func TestListenerSeesWhatWasEnqueued(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := runtimetest.NewNotes()
	l := runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, h)
	m := outbox.Message{
		Namespace: "test", Topic: "said", Version: 1, TenantID: outbox.Tenant(runtimetest.TenantA), DedupeKey: runtimetest.TenantA.String() + "/1",
		PartitionKey: "room 1", Entity: outbox.Entity{Type: "room", ID: "1", Version: 7}, Headers: map[string]string{"trace": "t1"},
		Payload: []byte(`{"key": "a", "n": 9007199254740993}`), Log: true,
	}
	receipts := runtimetest.EnqueueAll(t, pool, m)
	runtimetest.DrainAll(t, l)
	require.Len(t, h.Got, 1)
	d := h.Got[0]
	require.WithinDuration(t, time.Now(), d.CreatedAt, time.Hour)
	d.CreatedAt = time.Time{}
	require.Equal(t, outbox.Delivery[runtimetest.Said]{
		Event: outbox.Event{
			ID: receipts[0].ID, Namespace: "test", Topic: "said", Version: 1, TenantID: outbox.Tenant(runtimetest.TenantA), DedupeKey: m.DedupeKey,
			PartitionKey: "room 1", Entity: m.Entity, Headers: m.Headers, Attempt: 1, MaxAttempts: 25,
		},
		Payload: runtimetest.Said{Key: "a", N: 9007199254740993},
	}, d)
}
