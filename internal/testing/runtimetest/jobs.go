// Package runtimetest has what the tests of outbox, queue, listener and admin share: topics and handlers, dispatchers
// and listeners, brokers, child processes. Its own tests are of promises that dispatchers and listeners have in common.
package runtimetest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// Job is the payload of the dispatcher's tests.
type Job struct {
	TenantID uuid.UUID `json:"tenant_id"`
	N        int64     `json:"n"`
	Secret   string    `json:"secret,omitempty"`
}

type JobHandlers interface {
	HandleJob(context.Context, outbox.Delivery[Job]) error
}

type JobFunc func(context.Context, outbox.Delivery[Job]) error

func (f JobFunc) HandleJob(ctx context.Context, d outbox.Delivery[Job]) error { return f(ctx, d) }

// JobTopic returns a topic of the namespace jobs that retries soon.
func JobTopic(name string) outbox.Topic[Job] {
	return outbox.NewTopic[Job](outbox.TopicSpec{
		Namespace: "jobs", Name: name, Version: 1,
		Retry: outbox.Retry{MaxAttempts: 5, BaseDelay: time.Millisecond, MaxDelay: 20 * time.Millisecond},
		Keys:  func(v any) outbox.Keys { return outbox.Keys{TenantID: outbox.Tenant(v.(*Job).TenantID)} },
	})
}

// Altered returns topic with its spec changed by change.
func Altered[P any](topic outbox.Topic[P], change func(*outbox.TopicSpec)) outbox.Topic[P] {
	spec := topic.Untyped().Spec()
	change(&spec)
	return outbox.NewTopic[P](spec)
}

func OnJob(topic outbox.Topic[Job], fn JobFunc) queue.Handler {
	return queue.Handle(topic, JobHandlers(fn), JobHandlers(fn).HandleJob)
}

// LimitedJobs returns a topic with limits. Those per {secret} and per destination have the field as their key.
func LimitedJobs(name string, limits ...outbox.Limit) outbox.Topic[Job] {
	return Altered(JobTopic(name), func(s *outbox.TopicSpec) {
		s.Limits = limits
		s.Keys = func(v any) outbox.Keys {
			j := v.(*Job)
			k := outbox.Keys{TenantID: outbox.Tenant(j.TenantID)}
			for _, l := range limits {
				if l.Per == "{secret}" || l.Per == outbox.PerDestination {
					k.Limits = append(k.Limits, eventkey.NewKey(eventkey.StringPart("secret", j.Secret)))
				}
			}
			return k
		}
	})
}

// QuickConfig is a configuration with a short poll interval, and a lease that is long enough for a busy machine.
func QuickConfig() queue.Config {
	return queue.Config{PollInterval: 50 * time.Millisecond, Logger: DiscardLogger()}
}

func DiscardLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }

func Dispatcher(t testing.TB, pool *pgxpool.Pool, cfg queue.Config, handlers ...queue.Handler) *queue.Dispatcher {
	t.Helper()
	d, err := queue.NewDispatcher(pool, cfg, handlers...)
	require.NoError(t, err)
	return d
}

// StartDispatcher runs d until stop, which returns what Run did; the test's end stops it too.
func StartDispatcher(t testing.TB, d *queue.Dispatcher) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// NumberedJobs returns n jobs, numbered from 0.
func NumberedJobs(n int) []Job {
	tenant := uuid.New()
	jobs := make([]Job, n)
	for i := range jobs {
		jobs[i] = Job{TenantID: tenant, N: int64(i)}
	}
	return jobs
}

func EnqueueJobs(t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[Job], jobs ...Job) []uuid.UUID {
	t.Helper()
	ids := make([]uuid.UUID, 0, len(jobs))
	require.NoError(t, pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
		receipts, err := topic.EnqueueMany(context.Background(), tx, jobs)
		for _, r := range receipts {
			ids = append(ids, r.ID)
		}
		return err
	}))
	return ids
}

// Gauge counts what runs concurrently.
type Gauge struct{ now, Most atomic.Int64 }

func (g *Gauge) Enter() int64 {
	n := g.now.Add(1)
	for {
		most := g.Most.Load()
		if n <= most || g.Most.CompareAndSwap(most, n) {
			return n
		}
	}
}

func (g *Gauge) Leave() { g.now.Add(-1) }

// Unconnected returns a pool that has never connected.
func Unconnected(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func Succeed(context.Context, outbox.Delivery[Job]) error { return nil }

func WithoutDue(r EventState) EventState {
	r.DueIn = 0
	return r
}

var ErrHandler = errors.New("handler failed")
