package runtimetest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// outage is a target that is unavailable while err is set.
type outage struct {
	err   atomic.Pointer[error]
	calls atomic.Int64  // while it was unavailable
	first chan struct{} // closed when the first has arrived
	all   chan struct{} // closed when all have arrived
	t     *testing.T

	mu     sync.Mutex
	last   map[string]int // the latest number of each key
	got    int
	called time.Time     // the latest call while it was unavailable
	pause  time.Duration // between that and the one before
}

const outageEvents, outageKeys = 60, 6

func newOutage(t *testing.T, err error) *outage {
	o := &outage{last: make(map[string]int), first: make(chan struct{}), all: make(chan struct{}), t: t}
	o.err.Store(&err)
	return o
}

func (o *outage) end() { o.err.Store(new(error)) }

// take receives an event in the target. If ordered is set, the events of a key must come in order.
func (o *outage) take(s runtimetest.Said, ordered bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := *o.err.Load(); err != nil {
		o.calls.Add(1)
		if !o.called.IsZero() {
			o.pause = time.Since(o.called)
		}
		o.called = time.Now()
		return err
	}
	if ordered && s.N != o.last[s.Key]+1 {
		return outbox.Permanent(fmt.Errorf("%s%d came after %d", s.Key, s.N, o.last[s.Key]))
	}
	o.last[s.Key] = s.N
	if o.got++; o.got == 1 {
		close(o.first)
	}
	if o.got == outageEvents {
		close(o.all)
	}
	return nil
}

func (o *outage) handle(_ context.Context, d outbox.Delivery[runtimetest.Said]) error {
	return o.take(d.Payload, runtimetest.SaidTopic.Untyped().Spec().Name == d.Topic)
}

func (o *outage) handleTx(_ context.Context, _ pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
	return o.take(d.Payload, true)
}

// Publish implements publish.Publisher, in order per key.
func (o *outage) Publish(_ context.Context, events []publish.Outgoing) []error {
	errs := make([]error, len(events))
	failed := make(map[string]bool)
	for i, e := range events {
		if failed[e.Key] {
			errs[i] = outbox.ErrBehind
			continue
		}
		key, n, _ := strings.Cut(e.Headers["said"], " ")
		s := runtimetest.Said{Key: key}
		_, _ = fmt.Sscan(n, &s.N)
		errs[i] = o.take(s, e.Topic == runtimetest.SaidTopic.Untyped().Spec().Name)
		failed[e.Key] = errs[i] != nil
	}
	return errs
}

var queuedTopic = outbox.NewTopic[runtimetest.Said](outbox.TopicSpec{Namespace: "test", Name: "queued", Version: 1, Keys: runtimetest.SaidTopic.Untyped().Spec().Keys, Retry: outbox.Retry{MaxAttempts: 3}})

func saidHeaders(v any) map[string]string {
	s := v.(*runtimetest.Said)
	return map[string]string{"said": fmt.Sprint(s.Key, " ", s.N)}
}

// outageRunners are the dispatchers and listeners that can find a target unavailable. No poll helps them to find it available
// again.
var outageRunners = map[string]func(t *testing.T, pool *pgxpool.Pool, o *outage, spy *runtimetest.LogSpy, breaker outbox.Breaker) runtimetest.Runner{
	"dispatcher": func(t *testing.T, pool *pgxpool.Pool, o *outage, spy *runtimetest.LogSpy, breaker outbox.Breaker) runtimetest.Runner {
		return outageDispatcher(t, pool, o, spy, breaker, queue.Handle(queuedTopic, o, o.handle))
	},
	"publishing dispatcher": func(t *testing.T, pool *pgxpool.Pool, o *outage, spy *runtimetest.LogSpy, breaker outbox.Breaker) runtimetest.Runner {
		return outageDispatcher(t, pool, o, spy, breaker, queue.Publish(queuedTopic,
			publish.Publication{Broker: "kafka", Destination: "sc.said", Headers: saidHeaders}))
	},
	"leased listener": func(t *testing.T, pool *pgxpool.Pool, o *outage, spy *runtimetest.LogSpy, breaker outbox.Breaker) runtimetest.Runner {
		return outageListener(t, pool, listener.Spec{}, o, spy, breaker, listener.Handle(runtimetest.SaidTopic, o, o.handle))
	},
	"parking listener": func(t *testing.T, pool *pgxpool.Pool, o *outage, spy *runtimetest.LogSpy, breaker outbox.Breaker) runtimetest.Runner {
		return outageListener(t, pool, listener.Spec{ParkKeys: true, Concurrency: 4}, o, spy, breaker, listener.Handle(runtimetest.SaidTopic, o, o.handle))
	},
	"transactional listener": func(t *testing.T, pool *pgxpool.Pool, o *outage, spy *runtimetest.LogSpy, breaker outbox.Breaker) runtimetest.Runner {
		return outageListener(t, pool, listener.Spec{}, o, spy, breaker, listener.HandleTx(runtimetest.SaidTopic, o, o.handleTx))
	},
	"publishing listener": func(t *testing.T, pool *pgxpool.Pool, o *outage, spy *runtimetest.LogSpy, breaker outbox.Breaker) runtimetest.Runner {
		return outageListener(t, pool, listener.Spec{}, o, spy, breaker, listener.Publish(runtimetest.SaidTopic,
			publish.Publication{Broker: "kafka", Destination: "sc.said", Headers: saidHeaders}))
	},
}

func outageDispatcher(t *testing.T, pool *pgxpool.Pool, o *outage, spy *runtimetest.LogSpy, breaker outbox.Breaker, h queue.Handler) runtimetest.Runner {
	cfg := runtimetest.SleeperConfig()
	cfg.Logger, cfg.Breaker, cfg.Publishers = spy.Logger(), breaker, map[string]publish.Publisher{"kafka": o}
	return runtimetest.Dispatcher(t, pool, cfg, h)
}

func outageListener(t *testing.T, pool *pgxpool.Pool, spec listener.Spec, o *outage, spy *runtimetest.LogSpy, breaker outbox.Breaker, h listener.Handler) runtimetest.Runner {
	spec.Name, spec.Retry = "away", outbox.Retry{MaxAttempts: 3}
	l, err := listener.New(pool, spec, listener.Config{
		Logger: spy.Logger(), Breaker: breaker, Publishers: map[string]publish.Publisher{"kafka": o},
		LeaseDuration: 3 * runtimetest.Rarely, PollInterval: runtimetest.Rarely,
	}, h)
	require.NoError(t, err)
	return l
}

// attemptsCharged adds up all counted attempts, in every table.
const attemptsCharged = `SELECT (SELECT coalesce(sum(attempts), 0) FROM testing.events WHERE status <> 'delivered')
	+ (SELECT count(*) FROM testing.events WHERE status = 'dead') + (SELECT count(*) FROM outbox.dead_letters)
	+ (SELECT coalesce(sum(attempts), 0) FROM outbox.parked) + (SELECT coalesce(sum(retry_count), 0) FROM outbox.listeners)`

// TestOutageChargesNoAttempt: a target is unavailable for twenty pauses, like ten minutes with the default. This costs
// no attempt, causes no dead letter and changes no order. One event is tried after each pause, and there are two log
// lines.
func TestOutageChargesNoAttempt(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	breaker := outbox.Breaker{Failures: 3, FirstPause: 2 * time.Millisecond, MaxPause: 50 * time.Millisecond}
	for kind, err := range map[string]error{
		"unavailable": outbox.Unavailable(errors.New("connection refused")),
		"failures":    errors.New("500 internal server error"), // of a destination
	} {
		for name, newRunner := range outageRunners {
			if kind == "failures" && !strings.HasPrefix(name, "publishing") {
				continue
			}
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				o, spy := newOutage(t, err), runtimetest.NewLogSpy()
				r := newRunner(t, pool, o, spy, breaker)
				topic := enqueueOutage(t, pool, name)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				over := make(chan error, 1)
				go func() { over <- r.Run(ctx) }()
				require.Contains(t, spy.Await(t, "resting"), err.Error())
				// The first call may have had all events; after it there is one event per pause.
				pgtest.Eventually(t, func() bool { return o.calls.Load() >= outageEvents+20 })
				before := o.calls.Load()
				pgtest.Eventually(t, func() bool { return o.calls.Load() >= before+20 })
				o.end()
				pgtest.Receive(t, o.all, "all events")
				require.Contains(t, spy.Await(t, "back: "), "handed_back=")
				cancel()
				require.NoError(t, <-over)
				require.Zero(t, pgtest.Count(t, pool, attemptsCharged))
				if topic.Untyped().Spec().Log {
					require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
				} else {
					require.Equal(t, "1 60", pgtest.Value[string](t, pool, "SELECT max(attempts) || ' ' || count(*) FROM testing.events WHERE status = 'delivered'"))
				}
				require.Equal(t, 1, strings.Count(spy.String(), "resting: "), "said once")
				require.Equal(t, 1, strings.Count(spy.String(), "back: "), "said once")
				require.NotContains(t, spy.String(), "level=ERROR")
			})
		}
	}
}

// TestReturnIsNoticedWithinTwoSeconds: with the defaults a target is tried at the end of each pause, and not with a poll, also
// after so many tries that the pause does not grow any more. The claim has half a second of the two.
func TestReturnIsNoticedWithinTwoSeconds(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	longest := config.BreakerWithDefaults(outbox.Breaker{}).MaxPause
	require.LessOrEqual(t, longest, 1500*time.Millisecond)
	for name, newRunner := range outageRunners {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			o, spy := newOutage(t, outbox.Unavailable(errors.New("connection refused"))), runtimetest.NewLogSpy()
			r := newRunner(t, pool, o, spy, outbox.Breaker{})
			enqueueOutage(t, pool, name)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error, 1)
			go func() { over <- r.Run(ctx) }()
			pgtest.Eventually(t, func() bool {
				o.mu.Lock()
				defer o.mu.Unlock()
				return o.pause > longest*3/4
			})
			o.end()
			pgtest.Receive(t, o.first, "the first event")
			cancel()
			require.NoError(t, <-over)
		})
	}
}

// enqueueOutage enqueues the events of an outage for the runner of this name.
func enqueueOutage(t *testing.T, pool *pgxpool.Pool, runner string) outbox.Topic[runtimetest.Said] {
	t.Helper()
	topic := queuedTopic
	if strings.HasSuffix(runner, "listener") {
		topic = runtimetest.SaidTopic
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for i := range outageEvents {
			_, err := topic.Enqueue(t.Context(), tx, runtimetest.Said{Key: fmt.Sprint("k", i%outageKeys), N: i/outageKeys + 1})
			require.NoError(t, err)
		}
	})
	return topic
}

// TestDrainComesBackFromAnOutage: Drain reports what rests, and drains the events of other targets.
func TestDrainComesBackFromAnOutage(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	o := newOutage(t, outbox.Unavailable(errors.New("connection refused")))
	other := runtimetest.JobTopic("other")
	queued := queuedTopic
	queued = runtimetest.Altered(queued, func(s *outbox.TopicSpec) { s.Namespace = other.Untyped().Spec().Namespace })
	runtimetest.EnqueueJobs(t, pool, other, runtimetest.NumberedJobs(250)...)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for i := range outageEvents {
			_, err := queued.Enqueue(t.Context(), tx, runtimetest.Said{Key: "k", N: i + 1})
			require.NoError(t, err)
		}
	})
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), queue.Handle(queued, o, o.handle), runtimetest.OnJob(other, runtimetest.Succeed))
	for i := range 2 {
		r, err := d.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"jobs/queued"}, r.Resting)
		if i == 0 {
			require.Positive(t, r.HandedBack)
		}
		require.Zero(t, r.Retried+r.Dead)
	}
	require.Equal(t, 250, pgtest.Count(t, pool, runtimetest.DeliveredSQL))
	o.end()
	pgtest.Eventually(t, func() bool {
		r, err := d.Drain(t.Context())
		require.NoError(t, err)
		return len(r.Resting) == 0 && pgtest.Count(t, pool, runtimetest.DeliveredSQL) == 250+outageEvents // the events that were handed back last are due last
	})
	require.Zero(t, pgtest.Count(t, pool, attemptsCharged))
}

// TestUnwrittenHandlerWaits: events whose handler is not written lose no attempt; a process that has the handler
// delivers them.
func TestUnwrittenHandlerWaits(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	spy := runtimetest.NewLogSpy()
	topic := runtimetest.JobTopic("mail")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(30)...)
	cfg := runtimetest.QuickConfig()
	cfg.Logger = spy.Logger()
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		return outbox.Unimplemented("jobs/mail")
	})))
	require.Contains(t, spy.Await(t, "no handler is written"), "level=ERROR")
	pgtest.Settles(t, pool, 30, "SELECT count(*) FROM testing.events WHERE status = 'pending' AND attempts = 0")
	require.NoError(t, stop())
	require.Zero(t, pgtest.Count(t, pool, attemptsCharged))
	runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)))
	pgtest.Settles(t, pool, 30, runtimetest.DeliveredSQL)
}

// TestDestinationsDoNotStarveEachOther: a thousand events go to a destination that is unavailable in any way. All
// events of the other destination arrive, although they have the same keys, and no event of the first loses an attempt.
func TestDestinationsDoNotStarveEachOther(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const events = 1000
	for how, bad := range runtimetest.BadDestinations {
		for name, log := range map[string]bool{"queue": false, "log": true} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				runtimetest.EnqueueDestinations(t, pool, log, events, true)
				var got atomic.Int64
				all := make(chan struct{})
				r := runtimetest.NewTwoDestinations(t, pool, log, &runtimetest.TwoDestinations{Bad: bad, Good: func(events []publish.Outgoing) {
					if got.Add(int64(len(events))) == 1000 {
						close(all)
					}
				}})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				over := make(chan error, 1)
				go func() { over <- r.Run(ctx) }()
				select {
				case <-all:
				case err := <-over:
					require.FailNow(t, "it has ended", "%v", err)
				case <-time.After(pgtest.Patience):
					require.FailNow(t, "timeout", "%d of %d events of the other destination have arrived", got.Load(), events)
				}
				cancel()
				require.NoError(t, <-over)
				require.Zero(t, pgtest.Count(t, pool, attemptsCharged))
			})
		}
	}
}
