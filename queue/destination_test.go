package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// hooks is a publisher whose destinations answer each in its own way.
type hooks struct {
	mu     sync.Mutex
	answer func(ctx context.Context, destination string) error // nil: takes all
	calls  map[string]int                                      // under way
	both   bool                                                // a destination had two calls
}

func (h *hooks) set(answer func(ctx context.Context, destination string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

func (h *hooks) Publish(ctx context.Context, events []publish.Outgoing) []error {
	to := events[0].Destination
	h.mu.Lock()
	if h.calls == nil {
		h.calls = make(map[string]int)
	}
	h.calls[to]++
	h.both = h.both || h.calls[to] > 1
	answer := h.answer
	h.mu.Unlock()
	errs := make([]error, len(events))
	for i, o := range events {
		if o.Destination != to {
			errs[i] = outbox.Permanent(errors.New("a call has events of two destinations"))
		} else if answer != nil {
			errs[i] = answer(ctx, to)
		}
	}
	h.mu.Lock()
	h.calls[to]--
	h.mu.Unlock()
	return errs
}

func byKey(v any) string { return v.(*runtimetest.Said).Key }

func byEvent(t testing.TB, pool *pgxpool.Pool, h publish.Publisher, change func(*queue.Config)) *queue.Dispatcher {
	t.Helper()
	cfg := queue.Config{Logger: runtimetest.DiscardLogger(), BatchSize: 20, PollInterval: 50 * time.Millisecond, Publishers: map[string]publish.Publisher{"hook": h}}
	if change != nil {
		change(&cfg)
	}
	d, err := queue.NewDispatcher(pool, cfg, queue.Publish(runtimetest.PublishedTopic, publish.Publication{Broker: "hook", DestinationOf: byKey}))
	require.NoError(t, err)
	return d
}

// enqueueFor enqueues n events for each destination, those of the first destination first.
func enqueueFor(t testing.TB, pool *pgxpool.Pool, n int, destinations ...string) {
	t.Helper()
	var all []runtimetest.Said
	for _, to := range destinations {
		for i := range n {
			all = append(all, runtimetest.Said{Key: to, N: i})
		}
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := runtimetest.PublishedTopic.EnqueueMany(t.Context(), tx, all)
		require.NoError(t, err)
	})
}

func named(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s%02d", prefix, i))
	}
	return names
}

// TestDestinationsThatHangHoldUpNoOther: 10 of 100 destinations hang, and their events come first. The events of the other
// 90 are delivered meanwhile. When the 10 answer, theirs are too, each with one attempt.
func TestDestinationsThatHangHoldUpNoOther(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	open := make(chan struct{})
	var once sync.Once
	release := func() { once.Do(func() { close(open) }) }
	t.Cleanup(release)
	h := &hooks{answer: func(_ context.Context, to string) error {
		if strings.HasPrefix(to, "hangs") {
			<-open
		}
		return nil
	}}
	d := byEvent(t, pool, h, nil)
	enqueueFor(t, pool, 15, named("hangs", 10)...)
	enqueueFor(t, pool, 15, named("works", 90)...)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Settles(t, pool, 90*15, "SELECT count(*) FROM testing.events WHERE status = 'delivered' AND partition_key LIKE 'works%'")
	require.Zero(t, runtimetest.CountWhere(t, pool, "status = 'delivered' AND partition_key LIKE 'hangs%'"))
	require.Less(t, pgtest.Value[int](t, pool, "SELECT max(claim_no)::int FROM testing.events"), 50, "events of destinations that hang are not claimed again and again")
	pgtest.Settles(t, pool, 1, "SELECT (max(next_attempt_at) > now() + interval '1 s')::int FROM testing.events WHERE status = 'pending'")
	release()
	pgtest.Settles(t, pool, 100*15, "SELECT count(*) FROM testing.events WHERE status = 'delivered' AND attempts = 1")
	require.NoError(t, stop())
	require.False(t, h.both, "a destination has one call at a time")
}

// TestDestinationRestsAlone: a destination that is unavailable, or fails for ten different events in a row, rests without
// the others. Nothing is charged while it rests. When it is back its events are delivered.
func TestDestinationRestsAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	log := runtimetest.NewLogSpy()
	h := &hooks{answer: func(_ context.Context, to string) error {
		switch to {
		case "away":
			return outbox.Unavailable(errors.New("nobody home"))
		case "broken":
			return errors.New("500")
		}
		return nil
	}}
	d := byEvent(t, pool, h, func(c *queue.Config) {
		c.Logger, c.Breaker = log.Logger(), outbox.Breaker{FirstPause: 10 * time.Millisecond, MaxPause: 20 * time.Millisecond}
	})
	enqueueFor(t, pool, 30, "away", "broken", "a", "b", "c")
	stop := runtimetest.StartDispatcher(t, d)
	log.Await(t, `target=hook:away topics=test/published error="nobody home"`)
	log.Await(t, `target=hook:broken`)
	pgtest.Settles(t, pool, 90, runtimetest.DeliveredSQL+" AND attempts = 1")
	pgtest.Settles(t, pool, 2, `SELECT count(*) FROM outbox.processes, jsonb_object_keys(resting) AS k WHERE k IN ('hook:away', 'hook:broken')`)
	pgtest.Settles(t, pool, 60, "SELECT count(*) FROM testing.events WHERE status <> 'delivered' AND attempts <= 1")
	h.set(nil)
	pgtest.Settles(t, pool, 150, runtimetest.DeliveredSQL+" AND attempts <= 2")
	log.Await(t, `msg="back: events are delivered again"`)
	require.NoError(t, stop())
	require.False(t, h.both)
}

// TestBrokerRestsForAllItsEvents: BrokerUnavailable makes all destinations wait, also those of events that are not claimed
// yet, and one event finds out that the broker is back.
func TestBrokerRestsForAllItsEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	log := runtimetest.NewLogSpy()
	h := &hooks{answer: func(context.Context, string) error { return outbox.BrokerUnavailable(errors.New("no network")) }}
	d := byEvent(t, pool, h, func(c *queue.Config) {
		c.Logger, c.Breaker = log.Logger(), outbox.Breaker{FirstPause: 10 * time.Millisecond, MaxPause: 20 * time.Millisecond}
	})
	enqueueFor(t, pool, 10, named("d", 10)...)
	stop := runtimetest.StartDispatcher(t, d)
	log.Await(t, `target=hook topics=test/published error="no network"`)
	require.Zero(t, runtimetest.CountWhere(t, pool, "status = 'delivered'"))
	h.set(nil)
	pgtest.Settles(t, pool, 100, runtimetest.DeliveredSQL+" AND attempts = 1")
	require.NoError(t, stop())
	require.NotContains(t, log.String(), "target=hook:d", "no destination is at fault")
}

// TestDrainByDestination: Drain delivers what it can, names the destinations that rest, and ends.
func TestDrainByDestination(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	h := &hooks{answer: func(_ context.Context, to string) error {
		if strings.HasPrefix(to, "away") {
			return outbox.Unavailable(errors.New("nobody home"))
		}
		return nil
	}}
	d := byEvent(t, pool, h, nil)
	enqueueFor(t, pool, 3, append(named("away", 25), "a", "b")...)
	r, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 6, r.Delivered)
	require.Zero(t, r.Retried+r.Dead)
	require.Len(t, r.Resting, 21)
	require.Equal(t, "hook:away00", r.Resting[0])
	require.Equal(t, "hook:* (5 more)", r.Resting[20])
	require.Equal(t, 75, runtimetest.CountWhere(t, pool, "status = 'pending' AND attempts = 0"))
}

// TestEventsWithoutADestination: an event that does not say where it goes, or too much, is a dead letter with a reason. One
// whose field cannot be read has had an attempt.
func TestEventsWithoutADestination(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	d, err := queue.NewDispatcher(pool, queue.Config{Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"hook": &hooks{}}},
		queue.Publish(runtimetest.PublishedTopic, publish.Publication{Broker: "hook", DestinationOf: func(v any) string {
			switch key := byKey(v); key {
			case "none":
				return ""
			case "long":
				return strings.Repeat("x", 1001)
			case "panics":
				panic(key)
			default:
				return key
			}
		}}))
	require.NoError(t, err)
	enqueueFor(t, pool, 1, "none", "long", "panics", "good")
	r, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 1, Dead: 2, Retried: 1}, r)
	require.Equal(t, 1, runtimetest.CountWhere(t, pool, "status = 'dead' AND last_error = 'destination: the field of the payload has 0 bytes: use 1 to 1000'"))
	require.Equal(t, 1, runtimetest.CountWhere(t, pool, "status = 'dead' AND last_error LIKE '%1001 bytes%'"))
}

// TestStopWithDestinationsThatHang: what waits behind a call that hangs is released with no attempt charged. The stop is
// bounded and names what still runs.
func TestStopWithDestinationsThatHang(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	open, began := make(chan struct{}), make(chan struct{}, 100)
	t.Cleanup(func() { close(open) })
	h := &hooks{answer: func(context.Context, string) error {
		began <- struct{}{}
		<-open
		return nil
	}}
	d := byEvent(t, pool, h, func(c *queue.Config) { c.BatchSize, c.ShutdownTimeout = 1, 100*time.Millisecond })
	enqueueFor(t, pool, 1, "one", "two")
	stop := runtimetest.StartDispatcher(t, d)
	for range 2 {
		pgtest.Receive(t, began, "a call")
	}
	enqueueFor(t, pool, 5, "one", "two")
	pgtest.Settles(t, pool, 12, "SELECT count(*) FROM testing.events WHERE claim_no > 0") // they wait, or were handed back
	err := stop()
	require.ErrorContains(t, err, "still running")
	require.Equal(t, 2, strings.Count(err.Error(), "test/published "))
	require.Equal(t, 10, runtimetest.CountWhere(t, pool, "status = 'pending' AND attempts = 0"))
}

// TestStopMakesNoMoreCalls: when ctx has ended, no publisher is called and no destination is asked for, even if the loop
// has decided so before. Calls in the caller's goroutine come one after the other, so the others wait meanwhile.
func TestStopMakesNoMoreCalls(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	handled, routed := runtimetest.JobTopic("handled"), runtimetest.JobTopic("routed")
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		called := make(map[string]bool)
		h := &hooks{answer: func(_ context.Context, to string) error {
			called[to] = true
			cancel()
			return nil
		}}
		enqueueFor(t, pool, 1, named("to", 3)...)
		_, err := byEvent(t, pool, h, nil).Drain(config.Inline(ctx))
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, called, 1)

		ctx, cancel = context.WithCancel(t.Context())
		runtimetest.EnqueueJobs(t, pool, handled, runtimetest.NumberedJobs(1)...)
		runtimetest.EnqueueJobs(t, pool, routed, runtimetest.NumberedJobs(1)...)
		publishers := map[string]publish.Publisher{"hook": &hooks{}}
		d, err := queue.NewDispatcher(pool, queue.Config{Logger: runtimetest.DiscardLogger(), Publishers: publishers},
			runtimetest.OnJob(handled, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
				cancel()
				return nil
			}),
			queue.Publish(routed, publish.Publication{Broker: "hook", DestinationOf: func(any) string {
				if ctx.Err() != nil {
					t.Error("asked after the end")
				}
				return "to"
			}}))
		require.NoError(t, err)
		_, err = d.Drain(config.Inline(ctx))
		require.ErrorIs(t, err, context.Canceled)
	}
}
