package queue_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestPoisonInABatch: the event that makes a batch of 500 fail is found in few calls. The others are delivered, in one
// more call each of which none fails, and nobody is charged twice.
func TestPoisonInABatch(t *testing.T) {
	t.Parallel()
	for name, failure := range wholeFailures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := batched(500, 0, retriesLate)
			ids := runtimetest.EnqueueJobs(t, pool, topic, withPoison(500, 333)...)
			passed := make(map[int64]int)
			c := &batchCalls{fn: func(_ context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
				if poisoned(ds) {
					return failure()
				}
				for _, d := range ds { // no two calls run at the same time
					passed[d.Payload.N]++
				}
				return nil
			}}
			stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c)))
			pgtest.Settles(t, pool, 499, runtimetest.DeliveredSQL)
			pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE status IN ('pending', 'dead')")
			require.NoError(t, stop())
			require.Equal(t, 500, c.sizes()[0])
			require.LessOrEqual(t, len(c.sizes()), 12, "%v", c.sizes())
			require.Equal(t, 499, withAttempts(t, pool, "delivered", 1))
			require.Len(t, passed, 499)
			for n, times := range passed {
				require.Equal(t, 1, times, "event %d", n)
			}
			poison := runtimetest.StateOf(t, pool, ids[333])
			require.Equal(t, 1, poison.Attempts)
			require.Equal(t, map[bool]string{true: "dead", false: "pending"}[name == "permanent"], poison.Status)
			require.Contains(t, c.all, []int64{333}, "it was called alone")
		})
	}
}

// TestPoisonsInABatch: several are found in one search.
func TestPoisonsInABatch(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := batched(100, 0, retriesLate)
	poison := []int{0, 41, 42, 99}
	ids := runtimetest.EnqueueJobs(t, pool, topic, withPoison(100, poison...)...)
	c := &batchCalls{fn: func(_ context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
		if !poisoned(ds) {
			return nil
		}
		return fmt.Errorf("%d events", len(ds))
	}}
	r, err := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 96, Retried: 4, Ended: outbox.EndDrained}, r)
	for _, i := range poison {
		require.Equal(t, "1 events", runtimetest.StateOf(t, pool, ids[i]).LastError, "of the call in which it was alone")
	}
	t.Logf("%d calls", len(c.sizes()))
}

// TestBatchThatAlwaysFails: the search ends after a number of calls. Nobody dies of an error that others share, not
// even on the last attempt, and of a permanent one.
func TestBatchThatAlwaysFails(t *testing.T) {
	t.Parallel()
	for _, attempts := range []int{1, 2} {
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := batched(500, 0, retriesLate, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = attempts })
			runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(500)...)
			c := &batchCalls{fn: func(context.Context, []outbox.Delivery[runtimetest.Job]) error {
				return outbox.Permanent(errors.New("never"))
			}}
			cfg := runtimetest.QuickConfig()
			cfg.Breaker.FirstPause, cfg.Breaker.MaxPause = time.Hour, time.Hour
			r, err := runtimetest.Dispatcher(t, pool, cfg, onBatch(topic, c)).Drain(t.Context())
			require.NoError(t, err)
			require.Len(t, c.sizes(), 72)
			alone := 0
			for _, size := range c.sizes() {
				if size == 1 {
					alone++
				}
			}
			require.NotZero(t, alone)
			require.Equal(t, alone, r.Dead)
			require.Equal(t, 500-alone, withAttempts(t, pool, "pending", attempts-1))
		})
	}
}

// TestSearchFindsTheTargetUnavailable: what is left of a search is handed back uncounted when a call of it says that the
// target is unavailable, and what was delivered before stays so.
func TestSearchFindsTheTargetUnavailable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := batched(8, 0, retriesLate)
	runtimetest.EnqueueJobs(t, pool, topic, withPoison(8, 7)...)
	c := &batchCalls{}
	c.fn = func(_ context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
		switch len(ds) {
		case 8:
			return errors.New("no")
		case 4:
			return nil
		}
		return outbox.Unavailable(errors.New("down"))
	}
	cfg := runtimetest.QuickConfig()
	cfg.Breaker.FirstPause, cfg.Breaker.MaxPause = time.Hour, time.Hour
	r, err := runtimetest.Dispatcher(t, pool, cfg, onBatch(topic, c)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 4, HandedBack: 4, Ended: outbox.EndDrained, Resting: []string{"jobs/one"}}, r)
	require.Equal(t, []int{8, 4, 2}, c.sizes())
	require.Equal(t, 4, withAttempts(t, pool, "pending", 0))
}

// TestStopInASearch: within ShutdownTimeout a search goes on.
func TestStopInASearch(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := batched(64, 0, retriesLate)
	runtimetest.EnqueueJobs(t, pool, topic, withPoison(64, 5)...)
	failed, open := make(chan struct{}, 64), make(chan struct{})
	c := &batchCalls{fn: func(_ context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
		if poisoned(ds) {
			failed <- struct{}{}
			<-open
			return errors.New("no")
		}
		return nil
	}}
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	pgtest.Receive(t, failed, "the batch")
	cancel()
	close(open)
	require.NoError(t, pgtest.Receive(t, ended, "the end"))
	require.Equal(t, 63, withAttempts(t, pool, "delivered", 1))
	require.Equal(t, 1, withAttempts(t, pool, "pending", 1))
}

// TestStopCutsASearch: when the time is over, what was not called alone is charged, unless that were its end.
func TestStopCutsASearch(t *testing.T) {
	t.Parallel()
	for attempts, left := range map[int]int{1: 0, 2: 1} { // by the limit of attempts: those charged
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := batched(64, 0, retriesLate, func(s *outbox.TopicSpec) { s.Retry.MaxAttempts = attempts })
			ids := runtimetest.EnqueueJobs(t, pool, topic, withPoison(64, 40)...)
			searching := make(chan struct{}, 64)
			c := &batchCalls{}
			c.fn = func(ctx context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
				switch {
				case len(ds) == 64:
					return outbox.Permanent(errors.New("never"))
				case poisoned(ds):
					searching <- struct{}{}
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return nil
			}
			cfg := runtimetest.QuickConfig()
			cfg.ShutdownTimeout = 50 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			d := runtimetest.Dispatcher(t, pool, cfg, onBatch(topic, c))
			go func() { ended <- d.Run(ctx) }()
			pgtest.Receive(t, searching, "the search")
			cancel()
			require.NoError(t, pgtest.Receive(t, ended, "the end"))
			require.Equal(t, []int{64, 32, 16}, c.sizes())
			require.Equal(t, 32, withAttempts(t, pool, "delivered", 1))
			require.Equal(t, 32, withAttempts(t, pool, "pending", left))
			if left > 0 {
				require.Contains(t, runtimetest.StateOf(t, pool, ids[63]).LastError, "it was not tried alone")
			}
		})
	}
}

// TestSearchLosesALease: nothing more is called once one of its leases was lost.
func TestSearchLosesALease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := batched(8, 0, retriesLate)
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(8)...)
	cfg := shortLease()
	var lost <-chan struct{}
	c := &batchCalls{fn: func(ctx context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
		if len(ds) == 8 {
			return errors.New("no")
		}
		if _, err := pool.Exec(context.WithoutCancel(ctx), stealSQL, ids[7], uuid.New()); err != nil {
			return err
		}
		pgtest.Receive(t, lost, "the loss of a lease")
		return nil // although its context is cancelled
	}}
	d := runtimetest.Dispatcher(t, pool, cfg, onBatch(topic, c))
	lost = queue.Watch(d).Lost
	r, err := d.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 4, Retried: 3, Lost: 1, Ended: outbox.EndDrained}, r)
	require.Equal(t, []int{8, 4}, c.sizes())
}

// TestInlineSearchEndsItsGoroutine: a handler of a batch that ends the goroutine of the caller of Drain ends the search
// too, and nothing is left leased.
func TestInlineSearchEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := batched(8, 0, retriesLate)
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(8)...)
	c := &batchCalls{fn: func(context.Context, []outbox.Delivery[runtimetest.Job]) error {
		runtime.Goexit()
		return nil
	}}
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c))
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = d.Drain(config.Inline(t.Context()))
	}()
	pgtest.Receive(t, over, "the end of the goroutine")
	require.Equal(t, []int{8}, c.sizes())
	require.Equal(t, 8, withAttempts(t, pool, "pending", 1))
}
