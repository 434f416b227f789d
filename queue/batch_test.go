package queue_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// batched returns the topic with batches.
func batched(size int, wait time.Duration, change ...func(*outbox.TopicSpec)) outbox.Topic[runtimetest.Job] {
	return runtimetest.Altered(runtimetest.JobTopic("one"), func(s *outbox.TopicSpec) {
		s.Batch = outbox.Batch{Size: size, Wait: wait}
		for _, f := range change {
			f(s)
		}
	})
}

// retriesLate makes a failed event wait for longer than a test.
func retriesLate(s *outbox.TopicSpec) {
	s.Retry.BaseDelay, s.Retry.MaxDelay = time.Hour, time.Hour
}

// batchCalls are the calls of a handler of batches.
type batchCalls struct {
	mu  sync.Mutex
	all [][]int64 // the numbers of the events
	fn  func(ctx context.Context, ds []outbox.Delivery[runtimetest.Job]) error
}

func (c *batchCalls) handle(ctx context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
	var call []int64
	for _, d := range ds {
		call = append(call, d.Payload.N)
	}
	c.mu.Lock()
	c.all = append(c.all, call)
	c.mu.Unlock()
	if c.fn == nil {
		return nil
	}
	return c.fn(ctx, ds)
}

// sizes returns how many events each call has got.
func (c *batchCalls) sizes() (sizes []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.all {
		sizes = append(sizes, len(call))
	}
	return sizes
}

// times returns how often each event was in a call.
func (c *batchCalls) times() map[int64]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	times := make(map[int64]int)
	for _, call := range c.all {
		for _, n := range call {
			times[n]++
		}
	}
	return times
}

func onBatch(topic outbox.Topic[runtimetest.Job], c *batchCalls) queue.Handler {
	return queue.HandleBatch(topic, c, c.handle)
}

// poisoned reports whether one of ds is poison.
func poisoned(ds []outbox.Delivery[runtimetest.Job]) bool {
	return slices.ContainsFunc(ds, func(d outbox.Delivery[runtimetest.Job]) bool { return d.Payload.Secret == "poison" })
}

// withPoison returns n jobs, of which some are poison.
func withPoison(n int, poison ...int) []runtimetest.Job {
	jobs := runtimetest.NumberedJobs(n)
	for _, i := range poison {
		jobs[i].Secret = "poison"
	}
	return jobs
}

// withAttempts counts the events with so many attempts.
func withAttempts(t testing.TB, pool *pgxpool.Pool, status string, attempts int) int {
	t.Helper()
	return pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE status = $1 AND attempts = $2", status, attempts)
}

// TestBatchesAreFull: from a backlog each call gets as many events as a batch may have, although BatchSize is smaller.
func TestBatchesAreFull(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := batched(500, time.Hour)
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1500)...)
	c := &batchCalls{}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c)))
	pgtest.Settles(t, pool, 1500, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	require.Equal(t, []int{500, 500, 500}, c.sizes())
	require.True(t, slices.IsSorted(c.all[0]), "one claim takes events in the order in which they are due")
}

// TestBatchWaitsToFill: events that come one by one share a call. It comes when the batch is full, or when its first
// event has waited.
func TestBatchWaitsToFill(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const short = 700 * time.Millisecond
	for _, wait := range []time.Duration{time.Hour, short} {
		t.Run(wait.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := batched(3, wait)
			called := make(chan int, 10)
			c := &batchCalls{fn: func(_ context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
				called <- len(ds)
				return nil
			}}
			d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c))
			watch := queue.Watch(d)
			stop := runtimetest.StartDispatcher(t, d)
			pgtest.Receive(t, watch.Idle, "idleness")
			if wait == short {
				began := time.Now()
				runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
				require.Equal(t, 2, pgtest.Receive(t, called, "a batch that has waited"))
				require.GreaterOrEqual(t, time.Since(began), wait)
			} else {
				for i := range 3 {
					runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
					if i < 2 {
						pgtest.Settles(t, pool, i+1, "SELECT count(*) FROM testing.events WHERE status = 'processing'")
					}
				}
				require.Equal(t, 3, pgtest.Receive(t, called, "a full batch"))
			}
			require.NoError(t, stop())
		})
	}
}

// TestStopReleasesABatchThatFills: nothing of it was handled, and no attempt is counted.
func TestStopReleasesABatchThatFills(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := batched(10, time.Hour)
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(4)...)
	c := &batchCalls{}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c)))
	pgtest.Settles(t, pool, 4, "SELECT count(*) FROM testing.events WHERE status = 'processing'")
	require.NoError(t, stop())
	require.Empty(t, c.sizes())
	require.Equal(t, 4, withAttempts(t, pool, "pending", 0))
}

// TestBatchInADrain: it does not wait to fill.
func TestBatchInADrain(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"concurrent", "inline"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := batched(200, time.Hour)
			runtimetest.EnqueueJobs(t, pool, topic, withPoison(450, 217)...)
			c := &batchCalls{fn: func(_ context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
				if poisoned(ds) {
					return outbox.Permanent(errors.New("never"))
				}
				return nil
			}}
			ctx := t.Context()
			if mode == "inline" {
				ctx = config.Inline(ctx)
			}
			r, err := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c)).Drain(ctx)
			require.NoError(t, err)
			require.Equal(t, queue.Report{Delivered: 449, Dead: 1, Ended: outbox.EndDrained}, r)
			require.Equal(t, []int{200, 200, 50}, firstCalls(c, 450))
		})
	}
}

// firstCalls returns the sizes of the calls in which n events were called for the first time, the largest first.
func firstCalls(c *batchCalls, n int) (sizes []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := make(map[int64]bool, n)
	for _, call := range c.all {
		if !seen[call[0]] {
			sizes = append(sizes, len(call))
		}
		for _, i := range call {
			seen[i] = true
		}
	}
	slices.Sort(sizes)
	slices.Reverse(sizes)
	return sizes
}

// TestBatchError: the events that it names have failed, each with its own error and marks; the others are delivered.
func TestBatchError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]func(error) error{
		"as it is":         func(err error) error { return err },
		"wrapped":          func(err error) error { return fmt.Errorf("send: %w", err) },
		"marked Permanent": outbox.Permanent,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := batched(10, 0, retriesLate)
			ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(4)...)
			calls := &batchCalls{fn: func(_ context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
				var failed outbox.BatchError
				failed.Fail(ds[1].Event, errors.New("no"))
				failed.Fail(ds[2].Event, outbox.Permanent(errors.New("never")))
				failed.Fail(outbox.Event{ID: uuid.New()}, errors.New("of another batch"))
				return c(failed.Err())
			}}
			r, err := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, calls)).Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, queue.Report{Delivered: 2, Retried: 1, Dead: 1, Ended: outbox.EndDrained}, r)
			require.Equal(t, []int{4}, calls.sizes())
			require.Equal(t, "no", runtimetest.StateOf(t, pool, ids[1]).LastError)
			require.Equal(t, "never", runtimetest.StateOf(t, pool, ids[2]).LastError)
		})
	}
}

// TestBatchErrorOfOthers: one that names no event of its batch fails it as a whole, and an empty one has no failures.
func TestBatchErrorOfOthers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := batched(10, 0, retriesLate)
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
	c := &batchCalls{fn: func(_ context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
		var failed outbox.BatchError
		if len(ds) > 1 || ds[0].Payload.N == 1 {
			failed.Fail(outbox.Event{ID: uuid.New()}, errors.New("of another batch"))
		}
		return &failed
	}}
	r, err := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, queue.Report{Delivered: 1, Retried: 1, Ended: outbox.EndDrained}, r)
	require.Equal(t, []int{2, 1, 1}, c.sizes())
}

// wholeFailures are the ways in which a batch fails as a whole.
var wholeFailures = map[string]func() error{
	"error":     func() error { return errors.New("no") },
	"permanent": func() error { return outbox.Permanent(errors.New("never")) },
	"panic":     func() error { panic("boom") },
	"goexit": func() error {
		runtime.Goexit()
		return nil
	},
}

// TestBatchIsUnavailable: an error that is marked as Unavailable or with RetryAfter is that of each event, without a
// search.
func TestBatchIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err      error
		report   queue.Report
		attempts int
	}{
		"unavailable": {outbox.Unavailable(errors.New("down")), queue.Report{HandedBack: 20, Ended: outbox.EndDrained, Resting: []string{"jobs/one"}}, 0},
		"retry after": {outbox.RetryAfter(time.Hour, errors.New("later")), queue.Report{Retried: 20, Ended: outbox.EndDrained}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := batched(20, 0)
			runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(20)...)
			calls := &batchCalls{fn: func(context.Context, []outbox.Delivery[runtimetest.Job]) error { return c.err }}
			cfg := runtimetest.QuickConfig()
			cfg.Breaker.FirstPause, cfg.Breaker.MaxPause = time.Hour, time.Hour
			r, err := runtimetest.Dispatcher(t, pool, cfg, onBatch(topic, calls)).Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.report, r)
			require.Equal(t, []int{20}, calls.sizes())
			require.Equal(t, 20, withAttempts(t, pool, "pending", c.attempts))
		})
	}
}

// TestBatchLosesALease: its context is cancelled, and nothing of it is called again.
func TestBatchLosesALease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := batched(8, 0, retriesLate)
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(8)...)
	c := &batchCalls{fn: func(ctx context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
		if _, err := pool.Exec(ctx, stealSQL, ds[3].ID, uuid.New()); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	r := make(chan queue.Report, 1)
	d := runtimetest.Dispatcher(t, pool, shortLease(), onBatch(topic, c))
	go func() {
		report, err := d.Drain(t.Context())
		require.NoError(t, err)
		r <- report
	}()
	require.Equal(t, queue.Report{Retried: 7, Lost: 1, Ended: outbox.EndDrained}, pgtest.Receive(t, r, "the report"))
	require.Equal(t, []int{8}, c.sizes())
	require.Contains(t, runtimetest.StateOf(t, pool, ids[0]).LastError, "lease lost")
	require.True(t, runtimetest.StateOf(t, pool, ids[3]).Leased)
}

// TestWaitingBatchLosesALease: a batch that waits for its worker begins without the event whose lease was lost.
func TestWaitingBatchLosesALease(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := batched(8, 0)
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(16)...)
	started, open := make(chan struct{}, 2), make(chan struct{})
	c := &batchCalls{fn: func(context.Context, []outbox.Delivery[runtimetest.Job]) error {
		started <- struct{}{}
		<-open
		return nil
	}}
	cfg := shortLease()
	cfg.Concurrency = 1
	d := runtimetest.Dispatcher(t, pool, cfg, onBatch(topic, c))
	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Receive(t, started, "the first batch")
	pgtest.Settles(t, pool, 16, "SELECT count(*) FROM testing.events WHERE status = 'processing'")
	c.mu.Lock()
	waiting := int64(15)
	if slices.Contains(c.all[0], waiting) {
		waiting = 0
	}
	c.mu.Unlock()
	pgtest.Execute(t, pool, stealSQL, ids[waiting], uuid.New())
	pgtest.Receive(t, watch.Lost, "the loss of a lease")
	close(open)
	pgtest.Settles(t, pool, 15, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	require.Equal(t, []int{8, 7}, c.sizes())
	require.NotContains(t, c.times(), waiting)
}

// TestBatchUndecodable: an event whose payload does not decode fails alone, also if the handler fails.
func TestBatchUndecodable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		poison []int
		fn     func(ds []outbox.Delivery[runtimetest.Job]) error
		report queue.Report
	}{
		"all else is well": {nil, func([]outbox.Delivery[runtimetest.Job]) error { return nil },
			queue.Report{Delivered: 9, Dead: 1, Ended: outbox.EndDrained}},
		"another is named": {nil, func(ds []outbox.Delivery[runtimetest.Job]) error {
			var failed outbox.BatchError
			failed.Fail(ds[0].Event, errors.New("no"))
			return failed.Err()
		}, queue.Report{Delivered: 8, Retried: 1, Dead: 1, Ended: outbox.EndDrained}},
		"the whole fails": {[]int{8}, func(ds []outbox.Delivery[runtimetest.Job]) error {
			if poisoned(ds) {
				return errors.New("no")
			}
			return nil
		}, queue.Report{Delivered: 8, Retried: 1, Dead: 1, Ended: outbox.EndDrained}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := batched(10, 0, retriesLate)
			ids := runtimetest.EnqueueJobs(t, pool, topic, withPoison(10, c.poison...)...)
			pgtest.Execute(t, pool, `UPDATE outbox.events SET payload = '{"n": "x"}' WHERE id = $1`, ids[4])
			calls := &batchCalls{fn: func(_ context.Context, ds []outbox.Delivery[runtimetest.Job]) error { return c.fn(ds) }}
			r, err := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, calls)).Drain(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.report, r)
			require.Contains(t, runtimetest.StateOf(t, pool, ids[4]).LastError, "decode payload")
			require.NotContains(t, calls.times(), int64(4))
		})
	}
}

// TestBatchesOfTwoProcesses: each event is in one call.
func TestBatchesOfTwoProcesses(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := batched(50, 20*time.Millisecond)
	c := &batchCalls{}
	var stops []func() error
	for range 2 {
		stops = append(stops, runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), onBatch(topic, c))))
	}
	jobs := runtimetest.NumberedJobs(3000)
	for from := 0; from < len(jobs); from += 30 {
		runtimetest.EnqueueJobs(t, pool, topic, jobs[from:from+30]...)
	}
	pgtest.Settles(t, pool, 3000, runtimetest.DeliveredSQL)
	for _, stop := range stops {
		require.NoError(t, stop())
	}
	times := c.times()
	require.Len(t, times, 3000)
	for n, i := range times {
		require.Equal(t, 1, i, "event %d", n)
	}
	t.Logf("%d calls", len(c.sizes()))
}

// TestBatchesNextToSingleEvents: neither keeps the other from its turn, with one worker.
func TestBatchesNextToSingleEvents(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic, single := batched(10, time.Millisecond), runtimetest.JobTopic("two")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(105)...)
	runtimetest.EnqueueJobs(t, pool, single, runtimetest.NumberedJobs(200)...)
	c := &batchCalls{}
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency, cfg.BatchSize = 1, 20
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, onBatch(topic, c), runtimetest.OnJob(single, runtimetest.Succeed)))
	pgtest.Settles(t, pool, 305, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
}

// TestBatchMiddleware: it is called once per call, with all events, and its context reaches the handler.
func TestBatchMiddleware(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := batched(10, 0, retriesLate)
	runtimetest.EnqueueJobs(t, pool, topic, withPoison(4, 0)...)
	type key struct{}
	var saw []string
	note := func(name string) outbox.BatchMiddleware {
		return func(ctx context.Context, events []outbox.Event, next func(context.Context) error) error {
			saw = append(saw, fmt.Sprintf("%s: %d", name, len(events)))
			return next(context.WithValue(ctx, key{}, name))
		}
	}
	var values []any
	c := &batchCalls{fn: func(ctx context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
		values = append(values, ctx.Value(key{}))
		if poisoned(ds) {
			return errors.New("no")
		}
		return nil
	}}
	var told []string
	cfg := runtimetest.QuickConfig()
	cfg.BatchMiddleware = []outbox.BatchMiddleware{note("outer"), note("inner")}
	cfg.Observer = &outbox.Observer{
		Started: func(_ context.Context, _ outbox.Runner, events []outbox.Event) {
			told = append(told, fmt.Sprintf("started %d", len(events)))
		},
		Finished: func(_ context.Context, _ outbox.Runner, events []outbox.Event, errs []error, _ time.Duration) {
			failed := 0
			for _, err := range errs {
				if err != nil {
					failed++
				}
			}
			told = append(told, fmt.Sprintf("finished %d, %d failed", len(events), failed))
		},
	}
	_, err := runtimetest.Dispatcher(t, pool, cfg, onBatch(topic, c)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{
		"outer: 4", "inner: 4", "outer: 2", "inner: 2", "outer: 1", "inner: 1", "outer: 3", "inner: 3",
	}, saw)
	require.Equal(t, []any{"inner", "inner", "inner", "inner"}, values)
	require.Equal(t, []string{
		"started 4", "finished 4, 4 failed", "started 2", "finished 2, 2 failed", "started 1", "finished 1, 1 failed",
		"started 3", "finished 3, 0 failed",
	}, told)
}

// TestBatchConfig: what does not fit together is an error that says what to do.
func TestBatchConfig(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	c := &batchCalls{}
	wrap := func(ctx context.Context, _ outbox.Event, next func(context.Context) error) error { return next(ctx) }
	for _, each := range []struct {
		cfg     queue.Config
		handler queue.Handler
		want    string
	}{
		{queue.Config{}, queue.HandleBatch(batched(10, 0), nil, c.handle), "no handlers given (nil)"},
		{queue.Config{}, queue.HandleBatch[runtimetest.Job](batched(10, 0), c, nil), "no handlers given (nil)"},
		{queue.Config{}, onBatch(runtimetest.JobTopic("one"), c), "Batch.Size 0 is not between 1 and 10000: HandleBatch needs it"},
		{queue.Config{}, onBatch(batched(10_001, 0), c), "Batch.Size 10001 is not between"},
		{queue.Config{}, onBatch(batched(10, -1), c), "Batch.Wait -1ns is negative"},
		{queue.Config{}, runtimetest.OnJob(batched(10, 0), runtimetest.Succeed), "use HandleBatch"},
		{queue.Config{Middleware: []outbox.Middleware{wrap}}, onBatch(batched(10, 0), c), "set BatchMiddleware too"},
		{queue.Config{BatchMiddleware: []outbox.BatchMiddleware{nil}}, onBatch(batched(10, 0), c), "function 1 of 1 is nil"},
	} {
		_, err := queue.NewDispatcher(pool, each.cfg, each.handler)
		require.ErrorContains(t, err, each.want)
	}
	_, err := queue.NewDispatcher(pool, queue.Config{
		Middleware: []outbox.Middleware{wrap}, BatchMiddleware: []outbox.BatchMiddleware{},
	}, onBatch(batched(10, 0), c))
	require.NoError(t, err)
}
