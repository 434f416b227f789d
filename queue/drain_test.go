package queue_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestDrainReport: every result of an event is counted once, and what is due later stays.
func TestDrainReport(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := slowRetry()
	cfg := runtimetest.QuickConfig()
	cfg.BatchSize, cfg.Concurrency = 10, 4
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
		switch d.Payload.Secret {
		case "fail":
			return errors.New("no")
		case "refuse":
			return outbox.Permanent(errors.New("never"))
		case "panic":
			panic("boom")
		case "exit":
			runtime.Goexit()
		case "stolen":
			_, err := pool.Exec(ctx, stealSQL, d.ID, uuid.New())
			return err
		case "stolen, fails":
			_, err := pool.Exec(ctx, stealSQL, d.ID, uuid.New())
			return errors.Join(err, errors.New("no"))
		case "enqueues":
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := topic.EnqueueMany(ctx, tx, runtimetest.NumberedJobs(7))
				return err
			})
		}
		return nil
	}))
	var jobs []runtimetest.Job
	for secret, n := range map[string]int{"": 23, "fail": 3, "refuse": 2, "panic": 1, "exit": 1, "stolen": 2, "stolen, fails": 1, "enqueues": 1} {
		for range n {
			jobs = append(jobs, runtimetest.Job{TenantID: uuid.New(), Secret: secret})
		}
	}
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := topic.Enqueue(t.Context(), tx, runtimetest.NumberedJobs(1)[0], outbox.WithNotBefore(time.Now().Add(time.Hour)))
		return err
	}))
	spent := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	pgtest.Execute(t, pool, "UPDATE testing.events SET status = 'processing', attempts = 3, claim_no = 3, locked_by = $2, locked_until = now() - interval '1 s' WHERE id = $1", spent, uuid.New())

	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 23 + 1 + 7, Retried: 3 + 1 + 1, Dead: 2 + 1, Lost: 2 + 1}, report)
	require.Equal(t, 31, pgtest.Count(t, pool, runtimetest.DeliveredSQL))
	require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE status = 'dead'"))
	require.Equal(t, 6, pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE status = 'pending'"), "the failed ones and the scheduled one")

	report, err = d.Drain(t.Context())
	require.NoError(t, err)
	require.Zero(t, report, "nothing more is due")
	pgtest.Idle(t, pool)
}

// TestDrainReportsLostLeases: a lease that is lost while its handler runs is counted too.
func TestDrainReportsLostLeases(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := slowRetry()
	d := runtimetest.Dispatcher(t, pool, shortLease(), runtimetest.OnJob(topic, func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if _, err := pool.Exec(ctx, stealSQL, d.ID, uuid.New()); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}))
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Lost: 3}, report)
}

func TestDrainHonoursContext(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, mode := range []string{"concurrent", "inline"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := runtimetest.JobTopic("one")
			ctx, cancel := context.WithCancel(t.Context())
			if mode == "inline" {
				ctx = config.Inline(ctx)
			}
			cfg := runtimetest.QuickConfig()
			cfg.Concurrency = 3
			var mu sync.Mutex
			started := 0
			d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, _ outbox.Delivery[runtimetest.Job]) error {
				mu.Lock()
				defer mu.Unlock()
				if started++; started == 5 {
					cancel()
				}
				return ctx.Err() // its own context has not ended
			}))
			runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(50)...)
			report, err := d.Drain(ctx)
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, queue.Report{Delivered: started, Ended: outbox.EndStopped}, report)
			require.GreaterOrEqual(t, started, 5)
			require.LessOrEqual(t, started, 5+2, "none is started after the end")
			require.Equal(t, 50-started, pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE status = 'pending' AND attempts = 0 AND locked_until IS NULL"))

			first := started
			report, err = d.Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, 50-first, report.Delivered)
			require.Equal(t, 50, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))

			_, err = d.Drain(ctx)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

// TestDrainInline runs the handlers one after the other, oldest first, in the goroutine that called Drain.
func TestDrainInline(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := slowRetry()
	goroutine := func() string {
		stack := make([]byte, 64)
		id, _, _ := strings.Cut(string(stack[:runtime.Stack(stack, false)]), " [")
		return id
	}
	mine := goroutine()
	var order []int64
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		require.Equal(t, mine, goroutine())
		order = append(order, d.Payload.N)
		if d.Payload.N == 2 {
			panic("boom")
		}
		return nil
	}))
	for _, j := range runtimetest.NumberedJobs(5) {
		runtimetest.EnqueueJobs(t, pool, topic, j)
	}
	report, err := d.Drain(config.Inline(t.Context()))
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 4, Retried: 1}, report)
	require.Equal(t, []int64{0, 1, 2, 3, 4}, order)

	// A handler that ends its goroutine, as FailNow does, ends the caller's goroutine, and no other goroutine is left.
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	ended, returned := make(chan struct{}), false
	exits := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		runtime.Goexit()
		return nil
	}))
	go func() {
		defer close(ended)
		_, _ = exits.Drain(config.Inline(t.Context()))
		returned = true
	}()
	pgtest.Receive(t, ended, "the end of the goroutine")
	require.False(t, returned)
	_, err = exits.Drain(t.Context())
	require.NoError(t, err, "it is free again")
}

// TestDrainShards drains a backlog by tenant with two concurrent dispatchers that have no event in common.
func TestDrainShards(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	var tenants []uuid.UUID
	for range 4 {
		jobs := runtimetest.NumberedJobs(30)
		tenants = append(tenants, jobs[0].TenantID)
		runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	}
	var shards sync.WaitGroup
	reports := make([]queue.Report, 2)
	for n := range 2 {
		cfg := runtimetest.QuickConfig()
		cfg.TenantIDs = tenants[2*n : 2*n+2]
		d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
			if d.Payload.TenantID != cfg.TenantIDs[0] && d.Payload.TenantID != cfg.TenantIDs[1] {
				return errors.New("another shard's")
			}
			return nil
		}))
		shards.Go(func() {
			var err error
			reports[n], err = d.Drain(t.Context())
			if err != nil {
				t.Error(err)
			}
		})
	}
	shards.Wait()
	require.Equal(t, []queue.Report{{Delivered: 60}, {Delivered: 60}}, reports)
	require.Equal(t, 120, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))
}

// TestDrainOfLargeBacklog drains many batches and handles each event once.
func TestDrainOfLargeBacklog(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2000)...)
	cfg := runtimetest.QuickConfig()
	cfg.BatchSize = 64
	report, err := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 2000}, report)
	require.Equal(t, 2000, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))
}
