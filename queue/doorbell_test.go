package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// notified listens to a channel in a separate session.
type notified struct{ conn *pgx.Conn }

func listen(t testing.TB, pool *pgxpool.Pool) *notified {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t, pool))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, channel := runtimetest.BellOf("jobs")
	_, err = conn.Exec(t.Context(), "LISTEN "+channel)
	require.NoError(t, err)
	return &notified{conn: conn}
}

// heard returns the processes that rang since the last call, including all that rang before this call: it sends its own
// NOTIFY and reads up to that.
func (l *notified) heard(t testing.TB) (pids []uint32) {
	t.Helper()
	_, channel := runtimetest.BellOf("jobs")
	_, err := l.conn.Exec(t.Context(), "SELECT pg_notify($1, 'end')", channel)
	require.NoError(t, err)
	for {
		n, err := l.conn.WaitForNotification(t.Context())
		require.NoError(t, err)
		if n.Payload == "end" {
			return pids
		}
		if n.Payload != "" && n.Payload != "check" {
			_, err = uuid.Parse(n.Payload)
			require.NoError(t, err, "the bell says who rings, an enqueue or another, and has the token of who connects")
		}
		pids = append(pids, n.PID)
	}
}

// next waits for a ring and returns the processes that rang since the last call.
func (l *notified) next(t testing.TB) (pids []uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	n, err := l.conn.WaitForNotification(ctx)
	require.NoError(t, err)
	return append([]uint32{n.PID}, l.heard(t)...)
}

func TestBellWakesSleeper(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	r := recipientOf(t, pool, runtimetest.SleeperConfig(), topic)
	var took []time.Duration
	for range 200 {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
		took = append(took, r.expect(t))
		pgtest.Receive(t, r.watch.Idle, "sleep")
	}
	slices.Sort(took)
	t.Logf("commit to handler when idle: p50 %s, p99 %s, max %s", took[100], took[197], took[199])
	require.NoError(t, r.stop())
}

// TestBellIsRungOnlyForSleepers: without a sleeper no enqueue sends NOTIFY; with one, each does.
func TestBellIsRungOnlyForSleepers(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	ears := listen(t, pool)
	for range 50 {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
	}
	require.Empty(t, ears.heard(t), "no dispatcher")

	cfg := runtimetest.SleeperConfig()
	cfg.Concurrency, cfg.BatchSize = 1, 1
	open := make(chan struct{})
	started := make(chan struct{}, 1000)
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		started <- struct{}{}
		<-open
		return nil
	}))
	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Receive(t, started, "the handler")
	require.Len(t, ears.next(t), 1, "who connects rings for the others")
	for range 50 {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := topic.Enqueue(t.Context(), tx, runtimetest.Job{})
			require.Error(t, err) // the zero tenant
			return nil
		}))
	}
	require.Empty(t, ears.heard(t), "the dispatcher is busy")
	var usage float64
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT pg_notification_queue_usage()").Scan(&usage))
	require.Less(t, usage, 0.01)

	close(open)
	pgtest.Receive(t, watch.Idle, "sleep")
	ears.heard(t)
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	pgtest.Settles(t, pool, 201, runtimetest.DeliveredSQL)
	pgtest.Receive(t, watch.Idle, "sleep")
	rung := ears.heard(t)
	require.NotEmpty(t, rung, "the producer")
	require.LessOrEqual(t, len(rung), 2, "and the dispatcher, unless it fell asleep again before it could stop watching")
	require.NoError(t, stop())
}

// TestOpenTransactionKeepsDispatcherAwake: a transaction that enqueued before there was a sleeper commits without
// ringing, so nobody may sleep until then.
func TestOpenTransactionKeepsDispatcherAwake(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprintf("commit %t", commit), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := runtimetest.JobTopic("one")
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = topic.Enqueue(t.Context(), tx, runtimetest.NumberedJobs(1)[0])
			require.NoError(t, err)
			got := make(chan struct{}, 1)
			d := runtimetest.Dispatcher(t, pool, runtimetest.SleeperConfig(), runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
				got <- struct{}{}
				return nil
			}))
			watch := queue.Watch(d)
			stop := runtimetest.StartDispatcher(t, d)
			for range 5 {
				pgtest.Receive(t, watch.Refused, "a refusal")
			}
			require.Empty(t, watch.Idle, "awake")
			begin := time.Now()
			if commit {
				require.NoError(t, tx.Commit(t.Context()))
				pgtest.Receive(t, got, "the event")
				require.Less(t, time.Since(begin), runtimetest.Promptly)
			} else {
				require.NoError(t, tx.Rollback(t.Context()))
			}
			pgtest.Receive(t, watch.Idle, "sleep")
			require.NoError(t, stop())
			require.Empty(t, got)
		})
	}
}

// TestEnqueueBetweenPollAndLock: what commits after the empty claim and before the lock is taken wakes nobody; the
// check after the lock finds it.
func TestEnqueueBetweenPollAndLock(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	ears := listen(t, pool)
	cfg := runtimetest.SleeperConfig()
	var g *runtimetest.Gate
	cfg.ListenPool, g = runtimetest.NewGate(t, pool, "BellTryLock")
	cfg.Concurrency, cfg.BatchSize = 1, 1
	got := make(chan int64, 2)
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		got <- d.Payload.N
		if d.Payload.N == 0 { // busy until it has stopped watching, so that it has to take the lock again
			pgtest.Settles(t, pool, 0, "SELECT count(*) FROM pg_locks WHERE pid = $1 AND locktype = 'advisory'", runtimetest.Holder(t, pool))
		}
		return nil
	}))
	watch := queue.Watch(d)
	stop := runtimetest.StartDispatcher(t, d)
	pgtest.Receive(t, watch.Idle, "sleep")
	jobs := runtimetest.NumberedJobs(2)
	rung := []uint32{0}
	g.OnPass(sync.OnceFunc(func() {
		ears.heard(t) // the rings of going to sleep and waking up
		runtimetest.EnqueueJobs(t, pool, topic, jobs[1])
		rung = ears.heard(t)
	}))
	runtimetest.EnqueueJobs(t, pool, topic, jobs[0])
	require.EqualValues(t, 0, pgtest.Receive(t, got, "the first event"))
	begin := time.Now()
	require.EqualValues(t, 1, pgtest.Receive(t, got, "the second event"))
	require.Less(t, time.Since(begin), runtimetest.Promptly)
	require.NoError(t, stop())
	require.Empty(t, rung)
}

// TestNoWakeUpIsMissed has six producers commit and roll back in bursts. The dispatchers poll far too seldom to help.
// The test waits for each burst: a single event that woke nobody would be late.
func TestNoWakeUpIsMissed(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	a, b := runtimetest.JobTopic("a"), runtimetest.JobTopic("b")
	for name, served := range map[string][][]outbox.Topic[runtimetest.Job]{
		"one dispatcher":                        {{a, b}},
		"three dispatchers":                     {{a, b}, {a, b}, {a, b}},
		"three dispatchers of different topics": {{a}, {b}, {a, b}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			got := make(chan int64, 10_000)
			var stops []func() error
			for _, topics := range served {
				var handlers []queue.Handler
				for _, topic := range topics {
					handlers = append(handlers, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
						got <- d.Payload.N
						return nil
					}))
				}
				stops = append(stops, runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.SleeperConfig(), handlers...)))
			}
			var worst time.Duration
			total := 0
			for range runtimetest.Rounds(150) {
				var mu sync.Mutex
				committed := 0
				var producers sync.WaitGroup
				for range 6 {
					producers.Go(func() {
						n := burst(t, pool, []outbox.Topic[runtimetest.Job]{a, b}[rand.IntN(2)])
						mu.Lock()
						defer mu.Unlock()
						committed += n
					})
				}
				producers.Wait()
				begin := time.Now()
				for range committed {
					pgtest.Receive(t, got, "an event")
				}
				worst = max(worst, time.Since(begin))
				require.Less(t, worst, runtimetest.Promptly, "a wake-up was missed")
				total += committed
			}
			for _, stop := range stops {
				require.NoError(t, stop())
			}
			require.Empty(t, got)
			require.Equal(t, total, pgtest.Count(t, pool, runtimetest.DeliveredSQL+" AND attempts = 1"))
			t.Logf("%d events, worst burst %s", total, worst)
		})
	}
}

// burst runs a transaction with some enqueues, and returns how many events it committed.
func burst(t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[runtimetest.Job]) int {
	ctx := context.Background()
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	jobs := runtimetest.NumberedJobs(1 + rand.IntN(4))
	for _, j := range jobs {
		_, err := topic.Enqueue(ctx, tx, j)
		require.NoError(t, err)
		if rand.IntN(3) == 0 { // dispatchers go to sleep or wake up meanwhile
			_, err = tx.Exec(ctx, "SELECT pg_sleep($1)", rand.Float64()*0.005)
			require.NoError(t, err)
		}
	}
	if rand.IntN(3) == 0 {
		require.NoError(t, tx.Rollback(ctx))
		return 0
	}
	require.NoError(t, tx.Commit(ctx))
	return len(jobs)
}

func TestRollbackRingsNobody(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	r := recipientOf(t, pool, runtimetest.SleeperConfig(), topic)
	ears := listen(t, pool)
	for range 100 {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = topic.Enqueue(t.Context(), tx, runtimetest.NumberedJobs(1)[0])
		require.NoError(t, err)
		require.NoError(t, tx.Rollback(t.Context()))
	}
	require.Empty(t, ears.heard(t))
	require.NoError(t, r.stop())
	require.Empty(t, r.got)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM testing.events"))
}

// recipient is a running dispatcher and the events that it handled.
type recipient struct {
	d     *queue.Dispatcher
	watch queue.TestSignals
	got   chan outbox.Delivery[runtimetest.Job]
	stop  func() error
}

// recipientOf starts a dispatcher of topics and waits until it sleeps.
func recipientOf(t testing.TB, pool *pgxpool.Pool, cfg queue.Config, topics ...outbox.Topic[runtimetest.Job]) *recipient {
	t.Helper()
	r := &recipient{got: make(chan outbox.Delivery[runtimetest.Job], 10_000)}
	var handlers []queue.Handler
	for _, topic := range topics {
		handlers = append(handlers, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
			r.got <- d
			return nil
		}))
	}
	r.d = runtimetest.Dispatcher(t, pool, cfg, handlers...)
	r.watch = queue.Watch(r.d)
	r.stop = runtimetest.StartDispatcher(t, r.d)
	pgtest.Receive(t, r.watch.Idle, "sleep")
	return r
}

// expect waits for an event for less than the poll interval.
func (r *recipient) expect(t testing.TB) time.Duration {
	t.Helper()
	begin := time.Now()
	pgtest.Receive(t, r.got, "the event")
	took := time.Since(begin)
	require.Less(t, took, runtimetest.Promptly, "woken by the bell, not by the poll")
	return took
}
