package outbox_test

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

	"github.com/outboxgen/outboxgen/outbox"
)

// job is the payload of the dispatcher's tests.
type job struct {
	TenantID uuid.UUID `json:"tenant_id"`
	N        int64     `json:"n"`
	Secret   string    `json:"secret,omitempty"`
}

type jobHandlers interface {
	HandleJob(context.Context, outbox.Delivery[job]) error
}

type jobFunc func(context.Context, outbox.Delivery[job]) error

func (f jobFunc) HandleJob(ctx context.Context, d outbox.Delivery[job]) error { return f(ctx, d) }

// jobTopic returns a topic of the namespace jobs that retries soon.
func jobTopic(name string) outbox.Topic[job] {
	return outbox.NewTopic[job](outbox.TopicSpec{
		Namespace: "jobs", Name: name, Version: 1,
		Retry: outbox.Retry{MaxAttempts: 5, BaseDelay: time.Millisecond, MaxDelay: 20 * time.Millisecond},
		Keys:  func(v any) outbox.Keys { return outbox.Keys{TenantID: outbox.Tenant(v.(*job).TenantID)} },
	})
}

// altered returns topic with what change does to its spec.
func altered[P any](topic outbox.Topic[P], change func(*outbox.TopicSpec)) outbox.Topic[P] {
	spec := topic.Untyped().Spec()
	change(&spec)
	return outbox.NewTopic[P](spec)
}

func onJob(topic outbox.Topic[job], fn jobFunc) outbox.TopicHandler {
	return outbox.Handle(topic, jobHandlers(fn), jobHandlers(fn).HandleJob)
}

// quick is a configuration with a short poll and a lease that a busy machine can keep.
func quick() outbox.DispatcherConfig {
	return outbox.DispatcherConfig{PollInterval: 50 * time.Millisecond, Logger: quiet()}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func dispatcher(t testing.TB, pool *pgxpool.Pool, cfg outbox.DispatcherConfig, handlers ...outbox.TopicHandler) *outbox.Dispatcher {
	t.Helper()
	d, err := outbox.NewDispatcher(pool, cfg, handlers...)
	require.NoError(t, err)
	return d
}

// start runs d until stop, which returns what Run did; the test's end stops it too.
func start(t testing.TB, d *outbox.Dispatcher) (stop func() error) {
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

// numbered returns n jobs, numbered from 0.
func numbered(n int) []job {
	tenant := uuid.New()
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i] = job{TenantID: tenant, N: int64(i)}
	}
	return jobs
}

func enqueueJobs(t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[job], jobs ...job) []uuid.UUID {
	t.Helper()
	ids := make([]uuid.UUID, 0, len(jobs))
	require.NoError(t, pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
		receipts, err := topic.Untyped().EnqueueMany(context.Background(), tx, jobs)
		for _, r := range receipts {
			ids = append(ids, r.ID)
		}
		return err
	}))
	return ids
}

// gauge counts what runs at once.
type gauge struct{ now, most atomic.Int64 }

func (g *gauge) enter() int64 {
	n := g.now.Add(1)
	for {
		most := g.most.Load()
		if n <= most || g.most.CompareAndSwap(most, n) {
			return n
		}
	}
}

func (g *gauge) leave() { g.now.Add(-1) }

// unconnected returns a pool that has never connected.
func unconnected(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func succeed(context.Context, outbox.Delivery[job]) error { return nil }

func withoutDue(r eventState) eventState {
	r.DueIn = 0
	return r
}

var errHandler = errors.New("handler failed")
