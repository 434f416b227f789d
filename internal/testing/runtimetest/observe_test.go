package runtimetest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// mixed handles events by their number: most succeed, some fail at first, some are refused, some panic twice.
type mixed struct {
	mu    sync.Mutex
	calls map[string]int
}

func (m *mixed) take(s runtimetest.Said) error {
	m.mu.Lock()
	if m.calls == nil {
		m.calls = make(map[string]int)
	}
	name := fmt.Sprint(s.Key, s.N)
	m.calls[name]++
	n := m.calls[name]
	m.mu.Unlock()
	switch {
	case s.N%7 == 0 && n == 1:
		return runtimetest.ErrHandler
	case s.N%11 == 0:
		return outbox.Permanent(errors.New("no such account"))
	case s.N%13 == 0 && n < 3:
		panic("boom")
	}
	return nil
}

func (m *mixed) handle(_ context.Context, d outbox.Delivery[runtimetest.Said]) error {
	return m.take(d.Payload)
}

func (m *mixed) handleTx(_ context.Context, _ pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
	return m.take(d.Payload)
}

// Publish implements publish.Publisher.
func (m *mixed) Publish(_ context.Context, events []publish.Outgoing) []error {
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
		errs[i] = m.take(s)
		failed[e.Key] = errs[i] != nil
	}
	return errs
}

// observed are dispatchers and listeners with an observer and middleware.
var observed = map[string]func(t *testing.T, pool *pgxpool.Pool, m *mixed, o *outbox.Observer, mw ...outbox.Middleware) runtimetest.Runner{
	"dispatcher": func(t *testing.T, pool *pgxpool.Pool, m *mixed, o *outbox.Observer, mw ...outbox.Middleware) runtimetest.Runner {
		cfg := runtimetest.QuickConfig()
		cfg.Observer, cfg.Middleware = o, mw
		return runtimetest.Dispatcher(t, pool, cfg, queue.Handle(quickTopic, m, m.handle))
	},
	"publishing dispatcher": func(t *testing.T, pool *pgxpool.Pool, m *mixed, o *outbox.Observer, mw ...outbox.Middleware) runtimetest.Runner {
		cfg := runtimetest.QuickConfig()
		cfg.Observer, cfg.Middleware, cfg.Publishers = o, mw, map[string]publish.Publisher{"kafka": m}
		return runtimetest.Dispatcher(t, pool, cfg, queue.Publish(quickTopic, publish.Publication{Broker: "kafka", Destination: "sc.said", Headers: saidHeaders}))
	},
	"leased listener": func(t *testing.T, pool *pgxpool.Pool, m *mixed, o *outbox.Observer, mw ...outbox.Middleware) runtimetest.Runner {
		return observedListener(t, pool, listener.Spec{Concurrency: 4}, m, o, mw, listener.Handle(runtimetest.SaidTopic, m, m.handle))
	},
	"parking listener": func(t *testing.T, pool *pgxpool.Pool, m *mixed, o *outbox.Observer, mw ...outbox.Middleware) runtimetest.Runner {
		return observedListener(t, pool, listener.Spec{ParkKeys: true, Concurrency: 4}, m, o, mw, listener.Handle(runtimetest.SaidTopic, m, m.handle))
	},
	"transactional listener": func(t *testing.T, pool *pgxpool.Pool, m *mixed, o *outbox.Observer, mw ...outbox.Middleware) runtimetest.Runner {
		return observedListener(t, pool, listener.Spec{}, m, o, mw, listener.HandleTx(runtimetest.SaidTopic, m, m.handleTx))
	},
	"publishing listener": func(t *testing.T, pool *pgxpool.Pool, m *mixed, o *outbox.Observer, mw ...outbox.Middleware) runtimetest.Runner {
		return observedListener(t, pool, listener.Spec{ParkKeys: true}, m, o, mw, listener.Publish(runtimetest.SaidTopic,
			publish.Publication{Broker: "kafka", Destination: "sc.said", Headers: saidHeaders}))
	},
}

var quickRetry = outbox.Retry{MaxAttempts: 5, BaseDelay: time.Millisecond, MaxDelay: 2 * time.Millisecond}

var quickTopic = runtimetest.Altered(queuedTopic, func(s *outbox.TopicSpec) { s.Retry = quickRetry })

func observedListener(t *testing.T, pool *pgxpool.Pool, spec listener.Spec, m *mixed, o *outbox.Observer, mw []outbox.Middleware, h listener.Handler) runtimetest.Runner {
	spec.Name, spec.Retry = "seen", quickRetry
	l, err := listener.New(pool, spec, listener.Config{
		Logger: runtimetest.DiscardLogger(), Observer: o, Middleware: mw, Publishers: map[string]publish.Publisher{"kafka": m}, BatchSize: 20,
	}, h)
	require.NoError(t, err)
	return l
}

// TestObserverIsToldTheWholeStory: every event that is claimed is started, finished, and then settled or lost, in this
// order. Dead is told once per dead letter.
func TestObserverIsToldTheWholeStory(t *testing.T) {
	t.Parallel()
	const events = outageEvents
	for name, newRunner := range observed {
		for _, how := range []string{"Run", "Drain"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				ledger := runtimetest.NewLedger()
				r := newRunner(t, pool, &mixed{}, ledger.Observer())
				topic := quickTopic
				if strings.HasSuffix(name, "listener") {
					topic = runtimetest.SaidTopic
				}
				pgtest.InTx(t, pool, func(tx pgx.Tx) {
					for i := range events {
						_, err := topic.Enqueue(t.Context(), tx, runtimetest.Said{Key: fmt.Sprint("k", i%4), N: i + 1})
						require.NoError(t, err)
					}
				})
				over := func() bool {
					return ledger.Settled[outbox.SettledDelivered]+ledger.Settled[outbox.SettledDead] == events
				}
				if how == "Run" {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					ended := make(chan error, 1)
					go func() { ended <- r.Run(ctx) }()
					ledger.Await(t, "the end of all events", func() bool { return over() && ledger.Empty > 0 })
					cancel()
					require.NoError(t, pgtest.Receive(t, ended, "the end"))
				} else {
					pgtest.Eventually(t, func() bool { // what fails is due later
						_, err := r.Drain(t.Context())
						require.NoError(t, err)
						return over()
					})
				}
				ledger.RequireWhole(t)
				require.Equal(t, events/11, ledger.Settled[outbox.SettledDead])
				require.Zero(t, ledger.Lost)
				require.Equal(t, ledger.Settled[outbox.SettledDead], pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
				for id, reason := range ledger.Dead {
					require.Equal(t, "no such account", reason)
					require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters WHERE id = $1", id))
				}
				if name == "dispatcher" {
					require.Equal(t, events+events/7+2*(events/13), ledger.Calls)
					require.Equal(t, events/7+2*(events/13), ledger.Settled[outbox.SettledRetried])
				}
				if strings.HasSuffix(name, "listener") {
					require.Equal(t, "seen", ledger.Runner.Listener)
				} else {
					require.Equal(t, "test", ledger.Runner.Namespace)
				}
				require.NotEqual(t, uuid.Nil, ledger.Runner.WorkerID)
				require.Positive(t, ledger.Empty, "the claims that found nothing")
			})
		}
	}
}

// TestObserverIsToldOfLosses: the lease of an event is taken away while its handler runs.
func TestObserverIsToldOfLosses(t *testing.T) {
	t.Parallel()
	for name, steal := range map[string]string{
		"dispatcher":      "UPDATE outbox.queue SET claim_no = claim_no + 1, locked_until = NULL",
		"leased listener": "UPDATE outbox.listeners SET lease_no = lease_no + 1, lease_until = now() - interval '1 minute'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			ledger := runtimetest.NewLedger()
			stolen := sync.OnceFunc(func() { pgtest.Execute(t, pool, steal) })
			r := observed[name](t, pool, &mixed{}, ledger.Observer(), func(ctx context.Context, _ outbox.Event, next func(context.Context) error) error {
				stolen()
				return next(ctx)
			})
			topic := quickTopic
			if name != "dispatcher" {
				topic = runtimetest.SaidTopic
			}
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				_, err := topic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "k", N: 1})
				require.NoError(t, err)
			})
			for range 2 {
				_, err := r.Drain(t.Context())
				require.NoError(t, err)
			}
			ledger.RequireWhole(t)
			require.Equal(t, 1, ledger.Lost)
			require.Equal(t, 1, ledger.Settled[outbox.SettledDelivered], "handled again")
		})
	}
}

// TestObserverIsToldOfTheDeadOfASweep: an event whose worker died on its last attempt.
func TestObserverIsToldOfTheDeadOfASweep(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.Altered(runtimetest.JobTopic("one"), func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = 1 })
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	holder, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	_, err = holder.Claim(t.Context(), queue.ClaimConfig{})
	require.NoError(t, err)
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET locked_until = now() - interval '1 minute'")
	ledger := runtimetest.NewLedger()
	seen := make(map[uuid.UUID]outbox.Event)
	o := ledger.Observer()
	tell := o.Dead
	o.Dead = func(r outbox.Runner, e outbox.Event, err error) {
		seen[e.ID] = e
		tell(r, e, err)
	}
	cfg := runtimetest.QuickConfig()
	cfg.Observer = o
	report, err := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, report.Dead)
	require.Len(t, seen, 3)
	for _, id := range ids {
		require.Contains(t, ledger.Dead[id], "lease ran out on attempt 1")
		e := seen[id]
		require.Equal(t, "jobs one 1 1 1", fmt.Sprint(e.Namespace, " ", e.Topic, " ", e.Version, " ", e.Attempt, " ", e.MaxAttempts))
		require.True(t, e.TenantID.Valid)
		require.WithinDuration(t, time.Now(), e.CreatedAt, time.Hour)
	}
	require.Empty(t, ledger.Settled, "it was not claimed")
}

// TestObserverIsToldOfRests: a target rests and returns.
func TestObserverIsToldOfRests(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	o := newOutage(t, outbox.Unavailable(errors.New("connection refused")))
	ledger := runtimetest.NewLedger()
	cfg := runtimetest.QuickConfig()
	cfg.Observer = ledger.Observer()
	d := runtimetest.Dispatcher(t, pool, cfg, queue.Handle(queuedTopic, o, o.handle))
	enqueueOutage(t, pool, "dispatcher")
	stop := runtimetest.StartDispatcher(t, d)
	ledger.Await(t, "the rest", func() bool { return len(ledger.Rests) > 0 })
	o.end()
	pgtest.Receive(t, o.all, "all events")
	ledger.Await(t, "the return", func() bool { return len(ledger.Returns) > 0 && len(ledger.Returns) == len(ledger.Rests) })
	require.NoError(t, stop())
	// A handler that is slow to report its failure may make the target rest once more.
	require.Len(t, ledger.Returns, len(ledger.Rests))
	for i := range ledger.Rests {
		require.Equal(t, "test/queued: connection refused", ledger.Rests[i])
		require.Equal(t, "test/queued", ledger.Returns[i])
	}
	ledger.RequireWhole(t)
	require.Positive(t, ledger.Settled[outbox.SettledReleased])
}

type tag struct{}

// TestMiddlewareWrapsHandlers: the first is outermost, its context reaches the handler, and its error decides.
func TestMiddlewareWrapsHandlers(t *testing.T) {
	t.Parallel()
	for name, newRunner := range observed {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			var mu sync.Mutex
			var seen []string
			note := func(text string) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, text)
			}
			outer := func(ctx context.Context, e outbox.Event, next func(context.Context) error) error {
				note(fmt.Sprint("outer ", e.Attempt))
				err := next(context.WithValue(ctx, tag{}, "of outer"))
				note(fmt.Sprint("over: ", err))
				return err
			}
			inner := func(ctx context.Context, e outbox.Event, next func(context.Context) error) error {
				note(fmt.Sprint("inner ", ctx.Value(tag{})))
				switch err := next(ctx); e.Attempt {
				case 1:
					return errors.New("changed")
				case 2:
					panic("boom")
				default:
					return err
				}
			}
			ledger := runtimetest.NewLedger()
			r := newRunner(t, pool, &mixed{}, ledger.Observer(), outer, inner)
			topic := quickTopic
			if strings.HasSuffix(name, "listener") {
				topic = runtimetest.SaidTopic
			}
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				_, err := topic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "k", N: 1})
				require.NoError(t, err)
			})
			pgtest.Eventually(t, func() bool {
				_, err := r.Drain(t.Context())
				require.NoError(t, err)
				return ledger.Settled[outbox.SettledDelivered] == 1
			})
			if strings.HasPrefix(name, "publishing") {
				require.Empty(t, seen)
				return
			}
			require.Equal(t, []string{
				"outer 1", "inner of outer", "over: changed",
				"outer 2", "inner of outer", // the panic passes outer
				"outer 3", "inner of outer", "over: <nil>",
			}, seen)
		})
	}
	t.Run("nil is refused", func(t *testing.T) {
		t.Parallel()
		cfg := queue.Config{Middleware: []outbox.Middleware{nil}}
		_, err := queue.NewDispatcher(runtimetest.Unconnected(t), cfg, runtimetest.OnJob(runtimetest.JobTopic("one"), runtimetest.Succeed))
		require.EqualError(t, err, "new dispatcher: field Middleware: function 1 of 1 is nil")
	})
}

// TestMiddlewareErrorUndoesTheHandlersWrites: in transactional mode middleware runs inside the savepoint of its event.
func TestMiddlewareErrorUndoesTheHandlersWrites(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.MakeEffects(t, pool)
	notes := runtimetest.NewNotes()
	cfg := listener.Config{Logger: runtimetest.DiscardLogger(), Middleware: []outbox.Middleware{
		func(ctx context.Context, e outbox.Event, next func(context.Context) error) error {
			if err := next(ctx); err != nil || e.PartitionKey == "good" {
				return err
			}
			return outbox.Permanent(errors.New("refused after the handler"))
		},
	}}
	l := runtimetest.ListenTx(t, pool, listener.Spec{Name: "seen"}, cfg, notes)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		for _, key := range []string{"bad", "good"} {
			_, err := runtimetest.SaidTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: key, N: 1})
			require.NoError(t, err)
		}
	})
	_, err := l.Drain(t.Context())
	require.NoError(t, err)
	require.Len(t, notes.Got, 2)
	require.Equal(t, "good", pgtest.Value[string](t, pool, "SELECT string_agg(key, ',') FROM effects"))
}
