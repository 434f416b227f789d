package runtimetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// calls counts what is given to handlers or a publisher, and is both.
type calls struct {
	n    atomic.Int64
	each func(ctx context.Context, s runtimetest.Said) error // nil means success
}

func (c *calls) call(ctx context.Context, s runtimetest.Said) error {
	c.n.Add(1)
	if c.each == nil {
		return nil
	}
	return c.each(ctx, s)
}

func (c *calls) handle(ctx context.Context, d outbox.Delivery[runtimetest.Said]) error {
	return c.call(ctx, d.Payload)
}

func (c *calls) handleTx(ctx context.Context, _ pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
	return c.call(ctx, d.Payload)
}

// Publish implements publish.Publisher.
func (c *calls) Publish(ctx context.Context, events []publish.Outgoing) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		var s runtimetest.Said
		if errs[i] = json.Unmarshal(e.Payload, &s); errs[i] == nil {
			errs[i] = c.call(ctx, s)
		}
	}
	return errs
}

const drainBatch, drainConcurrency = 7, 3

// drainers are the things that can be drained, each with its topic.
var drainers = map[string]func(t testing.TB, pool *pgxpool.Pool, c *calls) (runtimetest.Runner, outbox.Topic[runtimetest.Said]){
	"dispatcher": func(t testing.TB, pool *pgxpool.Pool, c *calls) (runtimetest.Runner, outbox.Topic[runtimetest.Said]) {
		topic := runtimetest.Altered(runtimetest.SaidTopic, func(s *outbox.TopicSpec) { s.Log = false })
		cfg := queue.Config{BatchSize: drainBatch, Concurrency: drainConcurrency, Logger: runtimetest.DiscardLogger(), Retry: runtimetest.LateRetry}
		return runtimetest.Dispatcher(t, pool, cfg, queue.Handle(topic, c, c.handle)), topic
	},
	"dispatcher that publishes": func(t testing.TB, pool *pgxpool.Pool, c *calls) (runtimetest.Runner, outbox.Topic[runtimetest.Said]) {
		topic := runtimetest.Altered(runtimetest.SaidTopic, func(s *outbox.TopicSpec) { s.Log = false })
		cfg := queue.Config{BatchSize: drainBatch, Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": c}}
		return runtimetest.Dispatcher(t, pool, cfg, queue.Publish(topic, publish.Publication{Broker: "kafka", Destination: "x"})), topic
	},
	"listener": func(t testing.TB, pool *pgxpool.Pool, c *calls) (runtimetest.Runner, outbox.Topic[runtimetest.Said]) {
		return drainListener(t, pool, listener.Spec{}, listener.Config{Concurrency: drainConcurrency}, listener.Handle(runtimetest.SaidTopic, c, c.handle)), runtimetest.SaidTopic
	},
	"listener that blocks": func(t testing.TB, pool *pgxpool.Pool, c *calls) (runtimetest.Runner, outbox.Topic[runtimetest.Said]) {
		return drainListener(t, pool, listener.Spec{}, listener.Config{}, listener.Handle(runtimetest.SaidTopic, c, c.handle)), runtimetest.SaidTopic
	},
	"listener with shards": func(t testing.TB, pool *pgxpool.Pool, c *calls) (runtimetest.Runner, outbox.Topic[runtimetest.Said]) {
		return drainListener(t, pool, listener.Spec{Shards: 4, ParkKeys: true}, listener.Config{Concurrency: drainConcurrency}, listener.Handle(runtimetest.SaidTopic, c, c.handle)), runtimetest.SaidTopic
	},
	"transactional listener": func(t testing.TB, pool *pgxpool.Pool, c *calls) (runtimetest.Runner, outbox.Topic[runtimetest.Said]) {
		return drainListener(t, pool, listener.Spec{}, listener.Config{}, listener.HandleTx(runtimetest.SaidTopic, c, c.handleTx)), runtimetest.SaidTopic
	},
	"listener that publishes": func(t testing.TB, pool *pgxpool.Pool, c *calls) (runtimetest.Runner, outbox.Topic[runtimetest.Said]) {
		cfg := listener.Config{Publishers: map[string]publish.Publisher{"kafka": c}}
		return drainListener(t, pool, listener.Spec{}, cfg, listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "kafka", Destination: "x"})), runtimetest.SaidTopic
	},
}

func drainListener(t testing.TB, pool *pgxpool.Pool, spec listener.Spec, cfg listener.Config, h listener.Handler) runtimetest.Runner {
	t.Helper()
	spec.Name, cfg.BatchSize, cfg.Logger = "ears", drainBatch, runtimetest.DiscardLogger()
	l, err := listener.New(pool, runtimetest.WithLateRetries(spec), cfg, h)
	require.NoError(t, err)
	return l
}

// say enqueues n events of several keys to topic.
func say(t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[runtimetest.Said], n int) {
	t.Helper()
	var all []runtimetest.Said
	for i := range n {
		all = append(all, runtimetest.Said{Key: fmt.Sprint("k", i%9), N: i})
	}
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := topic.EnqueueMany(t.Context(), tx, all)
		require.NoError(t, err)
	})
}

// TestDrainUpToEvents: a drain handles exactly as many events as its limit, and the next one continues.
func TestDrainUpToEvents(t *testing.T) {
	t.Parallel()
	for name, make := range drainers {
		for _, mode := range []string{"concurrent", "inline"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				ctx := t.Context()
				if mode == "inline" {
					ctx = config.Inline(ctx)
				}
				c := &calls{}
				d, topic := make(t, pool, c)
				report, err := d.Drain(ctx) // attaches a listener
				require.NoError(t, err)
				require.Equal(t, queue.Report{}, report)
				say(t, pool, topic, 35)
				sizes := []int{10, 1, drainBatch, 12}
				for _, n := range sizes {
					before := c.n.Load()
					report, err := d.DrainUpTo(ctx, outbox.DrainLimit{Events: n})
					require.NoError(t, err)
					require.Equal(t, queue.Report{Delivered: n, Ended: outbox.EndEvents}, report)
					require.EqualValues(t, n, c.n.Load()-before, "no handler was called in addition")
				}
				report, err = d.DrainUpTo(ctx, outbox.DrainLimit{Events: 6, Time: time.Hour})
				require.NoError(t, err)
				require.Equal(t, queue.Report{Delivered: 5}, report, "the rest, and nothing more is due")
				require.EqualValues(t, 35, c.n.Load())
			})
		}
	}
}

// TestDrainUpToCountsFailures: an event that fails counts too, so that a drain of a backlog that fails is bounded.
func TestDrainUpToCountsFailures(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dispatcher", "listener with shards"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			c := &calls{each: func(context.Context, runtimetest.Said) error { return runtimetest.ErrHandler }}
			d, topic := drainers[name](t, pool, c)
			_, err := d.Drain(t.Context())
			require.NoError(t, err)
			say(t, pool, topic, 9) // each of another key
			for range 2 {
				report, err := d.DrainUpTo(t.Context(), outbox.DrainLimit{Events: 4})
				require.NoError(t, err)
				require.Equal(t, queue.Report{Retried: 4, Ended: outbox.EndEvents}, report)
			}
			report, err := d.Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, queue.Report{Retried: 1}, report)
		})
	}
}

// TestDrainUpToTime: a drain whose time is over starts no more handlers, lets the running ones finish, and returns no
// error. The next drain continues, and nothing is charged for what was not started.
func TestDrainUpToTime(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const limit = 300 * time.Millisecond
	for name, make := range drainers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			c := &calls{each: func(ctx context.Context, _ runtimetest.Said) error {
				select {
				case <-time.After(limit + 100*time.Millisecond): // the time of the drain is over
					return ctx.Err()
				case <-ctx.Done():
					return errors.New("the handler was cancelled")
				}
			}}
			d, topic := make(t, pool, c)
			_, err := d.Drain(t.Context())
			require.NoError(t, err)
			const n = 4
			say(t, pool, topic, n)
			delivered := 0
			for delivered < n {
				before := c.n.Load()
				report, err := d.DrainUpTo(t.Context(), outbox.DrainLimit{Time: limit, Events: 100})
				require.NoError(t, err)
				if c.n.Load() == before { // a slow machine: there was no time to start one
					require.Equal(t, queue.Report{Ended: outbox.EndTime}, report)
					continue
				}
				require.Equal(t, queue.Report{Delivered: int(c.n.Load() - before), Ended: outbox.EndTime}, report)
				delivered += report.Delivered
			}
			require.EqualValues(t, n, c.n.Load(), "each was handled once")
			c.each = nil
			report, err := d.Drain(t.Context())
			require.NoError(t, err)
			require.Zero(t, report)
		})
	}
}

// TestDrainUpToTimeCancelsHandlers: handlers that run when the time is over are cancelled after ShutdownTimeout, and one
// that ignores this is an error that names its event.
func TestDrainUpToTimeCancelsHandlers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, log := range []bool{false, true} {
		for _, ignores := range []bool{false, true} {
			t.Run(fmt.Sprintf("log %t/ignores %t", log, ignores), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Database(t)
				open := make(chan struct{})
				defer close(open)
				c := &calls{each: func(ctx context.Context, _ runtimetest.Said) error {
					<-ctx.Done()
					if ignores {
						<-open
					}
					return context.Cause(ctx)
				}}
				var d runtimetest.Runner
				topic := runtimetest.SaidTopic
				if log {
					d = drainListener(t, pool, listener.Spec{}, listener.Config{ShutdownTimeout: time.Millisecond}, listener.Handle(topic, c, c.handle))
				} else {
					topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Log = false })
					cfg := queue.Config{ShutdownTimeout: time.Millisecond, Logger: runtimetest.DiscardLogger(), Retry: runtimetest.LateRetry}
					d = runtimetest.Dispatcher(t, pool, cfg, queue.Handle(topic, c, c.handle))
				}
				_, err := d.Drain(t.Context())
				require.NoError(t, err)
				say(t, pool, topic, 1)
				for c.n.Load() == 0 {
					report, err := d.DrainUpTo(t.Context(), outbox.DrainLimit{Time: 200 * time.Millisecond})
					switch {
					case c.n.Load() == 0:
					case ignores:
						require.ErrorContains(t, err, "still running after 1ms: test/said ")
						require.Equal(t, outbox.EndStopped, report.Ended)
					default:
						require.NoError(t, err)
						require.Equal(t, queue.Report{Retried: 1, Ended: outbox.EndTime}, report)
					}
				}
			})
		}
	}
}

// TestDrainUpToStops: the end of the context is an error, unlike a bound, and the report says so.
func TestDrainUpToStops(t *testing.T) {
	t.Parallel()
	for name, make := range drainers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			ctx, cancel := context.WithCancel(t.Context())
			c := &calls{}
			c.each = func(context.Context, runtimetest.Said) error {
				if c.n.Load() == 10 {
					cancel()
				}
				return nil
			}
			d, topic := make(t, pool, c)
			_, err := d.Drain(t.Context())
			require.NoError(t, err)
			say(t, pool, topic, 30)
			report, err := d.DrainUpTo(ctx, outbox.DrainLimit{Events: 25, Time: time.Hour})
			require.ErrorIs(t, err, context.Canceled)
			require.EqualValues(t, c.n.Load(), report.Delivered)
			require.Equal(t, outbox.EndStopped, report.Ended)
			require.Less(t, report.Delivered, 25)

			report, err = d.DrainUpTo(t.Context(), outbox.DrainLimit{})
			require.NoError(t, err)
			require.Equal(t, outbox.EndDrained, report.Ended)
			require.EqualValues(t, 30, c.n.Load())

			_, err = d.DrainUpTo(t.Context(), outbox.DrainLimit{Events: -1})
			require.ErrorContains(t, err, "limit: Events -1 is negative: 0 means any number")
			_, err = d.DrainUpTo(t.Context(), outbox.DrainLimit{Time: -time.Second})
			require.ErrorContains(t, err, "limit: Time -1s is negative: 0 means any time")
		})
	}
}

// TestDrainUpToFindsWhatBreaksTransactions: small drains of a transactional listener come to an event that breaks its
// transaction at the commit, because what is rolled back does not count.
func TestDrainUpToFindsWhatBreaksTransactions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, "CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	pgtest.Execute(t, pool, "INSERT INTO deferred VALUES (1)")
	handle := func(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
		if d.Payload.N != 3 {
			return nil
		}
		_, err := tx.Exec(ctx, "INSERT INTO deferred VALUES (1)")
		return err
	}
	l, err := listener.New(pool, listener.Spec{Name: "ears", Retry: outbox.Retry{MaxAttempts: 1}},
		listener.Config{Logger: runtimetest.DiscardLogger()}, listener.HandleTx(runtimetest.SaidTopic, &calls{}, handle))
	require.NoError(t, err)
	_, err = l.Drain(t.Context())
	require.NoError(t, err)
	say(t, pool, runtimetest.SaidTopic, 10)
	var sum queue.Report
	for range 2 {
		report, err := l.DrainUpTo(t.Context(), outbox.DrainLimit{Events: 5})
		require.NoError(t, err)
		require.Equal(t, outbox.EndEvents, report.Ended)
		sum.Add(report)
	}
	require.Equal(t, queue.Report{Delivered: 9, Dead: 1}, sum)
}

// TestDrainUpToOfASilentDatabase: a drain that is bounded by time ends with an error if the database does not answer.
func TestDrainUpToOfASilentDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, log := range []bool{false, true} {
		t.Run(fmt.Sprintf("log %t", log), func(t *testing.T) {
			t.Parallel()
			proxy := pgtest.NewProxy(t, pgtest.Database(t))
			pool, c := proxy.Pool(t), &calls{}
			var d runtimetest.Runner
			if log {
				d = drainListener(t, pool, listener.Spec{}, listener.Config{LeaseDuration: time.Second}, listener.Handle(runtimetest.SaidTopic, c, c.handle))
			} else {
				topic := runtimetest.Altered(runtimetest.SaidTopic, func(s *outbox.TopicSpec) { s.Log = false })
				d = runtimetest.Dispatcher(t, pool, queue.Config{LeaseDuration: time.Second, Logger: runtimetest.DiscardLogger()}, queue.Handle(topic, c, c.handle))
			}
			_, err := d.Drain(t.Context())
			require.NoError(t, err)
			proxy.Swallow()
			over := make(chan struct{})
			go func() {
				defer close(over)
				report, err := d.DrainUpTo(t.Context(), outbox.DrainLimit{Time: time.Millisecond})
				if err == nil || report.Ended != outbox.EndStopped {
					t.Errorf("%v: %+v", err, report)
				}
			}()
			pgtest.Receive(t, over, "the end of the drain")
			proxy.Pass()
			proxy.Cut()
		})
	}
}
