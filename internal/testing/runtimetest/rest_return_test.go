package runtimetest_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// TestOneTryAtATime: while the workers are busy with another topic, at most one event of a resting topic is in flight,
// and the dispatcher still ends in time.
func TestOneTryAtATime(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	busy, away := runtimetest.JobTopic("busy"), runtimetest.JobTopic("away")
	runtimetest.EnqueueJobs(t, pool, away, runtimetest.NumberedJobs(50)...)
	rested, started := make(chan struct{}, 100), make(chan struct{}, 100)
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency, cfg.BatchSize, cfg.ShutdownTimeout = 1, 5, time.Millisecond
	cfg.Breaker = outbox.Breaker{FirstPause: time.Millisecond, MaxPause: time.Millisecond}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg,
		runtimetest.OnJob(away, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
			rested <- struct{}{}
			return outbox.Unavailable(errors.New("connection refused"))
		}),
		runtimetest.OnJob(busy, func(ctx context.Context, _ outbox.Delivery[runtimetest.Job]) error {
			started <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		})))
	pgtest.Receive(t, rested, "a try")
	runtimetest.EnqueueJobs(t, pool, busy, runtimetest.NumberedJobs(1)...)
	for ready := false; !ready; {
		select {
		case <-rested:
		case <-started:
			ready = true
		}
	}
	before := pgtest.Value[int64](t, pool, "SELECT sum(claim_no)::bigint FROM testing.events WHERE topic = 'away'")
	for range 3 { // checks of the dispatcher
		id := runtimetest.EnqueueJobs(t, pool, busy, runtimetest.NumberedJobs(1)...)[0]
		pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE id = $1 AND status = 'processing'", id)
	}
	require.LessOrEqual(t, pgtest.Value[int64](t, pool, "SELECT sum(claim_no)::bigint FROM testing.events WHERE topic = 'away'"), before+1)
	require.NoError(t, stop())
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM testing.events WHERE topic = 'away' AND (attempts > 0 OR status <> 'pending')"))
}

// TestReturnWakesADispatcherThatPolls: after a target's return, the other events do not wait for the next poll.
func TestReturnWakesADispatcherThatPolls(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("away")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(50)...)
	cfg := runtimetest.QuickConfig()
	cfg.LeaseDuration, cfg.PollInterval, cfg.MaxPollInterval, cfg.Wake = runtimetest.LongLease, runtimetest.LongLease/3, runtimetest.LongLease/3, outbox.WakePoll
	cfg.Breaker = outbox.Breaker{FirstPause: time.Millisecond, MaxPause: 10 * time.Millisecond}
	var calls atomic.Int64
	runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		if calls.Add(1) < 30 {
			return outbox.Unavailable(errors.New("connection refused"))
		}
		return nil
	})))
	pgtest.Settles(t, pool, 50, runtimetest.DeliveredSQL)
}

// TestEventsOfACrashedProcessAreTried: the last events of a resting topic are those of a killed process.
func TestEventsOfACrashedProcessAreTried(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("away")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
	var away atomic.Bool
	away.Store(true)
	tried := make(chan struct{}, 1000)
	cfg := runtimetest.QuickConfig()
	cfg.Breaker = outbox.Breaker{FirstPause: time.Millisecond, MaxPause: 20 * time.Millisecond}
	runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		tried <- struct{}{}
		if away.Load() {
			return outbox.Unavailable(errors.New("connection refused"))
		}
		return nil
	})))
	pgtest.Receive(t, tried, "the first")
	pgtest.Receive(t, tried, "the second, or a try")
	pgtest.Eventually(t, func() bool { // another process has claimed them, and was killed
		tag, err := pool.Exec(t.Context(), `UPDATE testing.events SET status = 'processing', attempts = 1, claim_no = claim_no + 1, locked_by = gen_random_uuid(),
			locked_until = statement_timestamp() - interval '1 s' WHERE (SELECT count(*) FROM testing.events WHERE status = 'pending') = 2`)
		require.NoError(t, err)
		return tag.RowsAffected() == 2
	})
	away.Store(false)
	pgtest.Settles(t, pool, 2, runtimetest.DeliveredSQL)
}

// TestReturnReachesAllKeys: however long the target was unavailable, all events that waited for it follow the first
// one. The delay of an event grows with the number of tries.
func TestReturnReachesAllKeys(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, concurrency := range map[string]int{"leased": 4, "publishing": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			o, spy := newOutage(t, outbox.Unavailable(outbox.RetryAfter(500*time.Millisecond, errors.New("connection refused")))), runtimetest.NewLogSpy()
			pgtest.InTx(t, pool, func(tx pgx.Tx) {
				for i := range outageEvents {
					_, err := runtimetest.SaidTopic.Enqueue(t.Context(), tx, runtimetest.Said{Key: fmt.Sprint("k", i%outageKeys), N: i/outageKeys + 1})
					require.NoError(t, err)
				}
			})
			b := outbox.Breaker{FirstPause: 500 * time.Millisecond, MaxPause: 20 * time.Second} // twice as long for all except one
			h := listener.Handle(runtimetest.SaidTopic, o, o.handle)
			if name == "publishing" {
				h = listener.Publish(runtimetest.SaidTopic, publish.Publication{Broker: "kafka", Destination: "sc.said", Headers: saidHeaders})
			}
			r := outageListener(t, pool, listener.Spec{Concurrency: concurrency}, o, spy, b, h)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error, 1)
			go func() { over <- r.Run(ctx) }()
			spy.Await(t, "resting")
			o.end()
			began := time.Now()
			pgtest.Receive(t, o.all, "all events")
			require.Less(t, time.Since(began), 20*time.Second)
			cancel()
			require.NoError(t, <-over)
		})
	}
}

// TestSlowDestinationIsNotLate: a destination whose calls take a little longer than StallAfter is not unavailable: its
// events are delivered at its own speed.
func TestSlowDestinationIsNotLate(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	runtimetest.EnqueueDestinations(t, pool, true, 400, true)
	var good, bad atomic.Int64
	r := runtimetest.NewTwoDestinations(t, pool, true, &runtimetest.TwoDestinations{
		Bad: func(_ context.Context, events []publish.Outgoing) []error {
			<-time.After(300 * time.Millisecond)
			bad.Add(int64(len(events)))
			return make([]error, len(events))
		}, Good: func(events []publish.Outgoing) { good.Add(int64(len(events))) }})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error, 1)
	go func() { over <- r.Run(ctx) }()
	began := time.Now()
	pgtest.Eventually(t, func() bool { return good.Load() == 400 })
	pgtest.Eventually(t, func() bool { return bad.Load() >= 400 })
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.parked")
	require.Less(t, time.Since(began), 20*time.Second, "30 s when each call waits for the next retry")
	cancel()
	require.NoError(t, <-over)
}
