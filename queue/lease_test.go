package queue_test

import (
	"context"
	"errors"
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

// shortLease is short enough for a test to wait for, and long enough to be renewed in time on a busy machine.
func shortLease() queue.Config {
	return queue.Config{LeaseDuration: runtimetest.CrashLease, PollInterval: 50 * time.Millisecond, Logger: runtimetest.DiscardLogger()}
}

// TestLeaseIsRenewed runs a handler for longer than its lease while another dispatcher is idle: invariant I4.
func TestLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	var running runtimetest.Gauge
	var ids []uuid.UUID
	started, open := make(chan struct{}, 10), make(chan struct{})
	handler := runtimetest.OnJob(topic, func(ctx context.Context, _ outbox.Delivery[runtimetest.Job]) error {
		running.Enter()
		defer running.Leave()
		started <- struct{}{}
		select {
		case <-open:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	holder := runtimetest.Dispatcher(t, pool, shortLease(), handler)
	watch := queue.Watch(holder)
	stopHolder := runtimetest.StartDispatcher(t, holder)
	ids = runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	pgtest.Receive(t, started, "the handler")
	rival := runtimetest.Dispatcher(t, pool, shortLease(), handler)
	stopRival := runtimetest.StartDispatcher(t, rival)
	first := pgtest.Value[time.Time](t, pool, "SELECT locked_until FROM testing.events")
	for pgtest.Value[bool](t, pool, "SELECT statement_timestamp() <= $1", first) {
		pgtest.Receive(t, watch.Renewed, "a renewal")
	}
	require.Equal(t, runtimetest.EventState{Status: "processing", Attempts: 1, MaxAttempts: 5, ClaimNo: 1, Leased: true}, runtimetest.WithoutDue(runtimetest.StateOf(t, pool, ids[0])))
	close(open)
	pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL)
	require.NoError(t, stopHolder())
	require.NoError(t, stopRival())
	require.EqualValues(t, 1, running.Most.Load())
	require.Equal(t, 1, runtimetest.StateOf(t, pool, ids[0]).Attempts)
}

// stealSQL gives an event to another worker, as a claim after the end of its lease would.
const stealSQL = `UPDATE testing.events
	SET claim_no = claim_no + 1, attempts = attempts + 1, locked_by = $2, locked_until = now() + interval '1 h'
	WHERE id = $1`

func TestLeaseLostCancelsTheHandler(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	log := runtimetest.NewLogSpy()
	cfg := shortLease()
	cfg.Logger = log.Logger()
	started, cause := make(chan struct{}), make(chan error, 1)
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, _ outbox.Delivery[runtimetest.Job]) error {
		close(started)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return errors.New("gave up")
	}))
	stop := runtimetest.StartDispatcher(t, d)
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	pgtest.Receive(t, started, "the handler")
	pgtest.Execute(t, pool, stealSQL, id, uuid.New())
	require.ErrorIs(t, pgtest.Receive(t, cause, "the cancelled context"), outbox.ErrLeaseLost)
	log.Await(t, `msg="lease lost"`)
	log.Await(t, `msg="event lost"`)
	require.NoError(t, stop())
	r := runtimetest.StateOf(t, pool, id)
	require.Equal(t, runtimetest.EventState{Status: "processing", Attempts: 2, MaxAttempts: 5, ClaimNo: 2, Leased: true}, runtimetest.WithoutDue(r), "never nacked")
}

func TestSuccessAfterLossIsLost(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	log := runtimetest.NewLogSpy()
	cfg := shortLease()
	cfg.Logger = log.Logger()
	started, open := make(chan struct{}), make(chan struct{})
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		close(started)
		<-open
		return nil
	})))
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	pgtest.Receive(t, started, "the handler")
	pgtest.Execute(t, pool, stealSQL, id, uuid.New())
	close(open) // before a renewal notices, or after: the fence decides either way
	line := log.Await(t, `msg="event was handled but lost to another claim"`)
	require.Contains(t, line, "event_id="+id.String())
	line = log.Await(t, `msg="events are lost: `)
	require.Contains(t, line, "level=WARN")
	require.Contains(t, line, "event_id="+id.String())
	require.NoError(t, stop())
	r := runtimetest.StateOf(t, pool, id)
	require.Equal(t, "processing", r.Status)
	require.EqualValues(t, 2, r.ClaimNo)
}

// TestFailureAfterLossChangesNothing: a failure is nacked before a renewal has noticed that the lease is lost. The
// fence refuses it.
func TestFailureAfterLossChangesNothing(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	log := runtimetest.NewLogSpy()
	cfg := queue.Config{LeaseDuration: time.Minute, Logger: log.Logger()} // no renewal meanwhile
	started, open := make(chan struct{}), make(chan struct{})
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		close(started)
		<-open
		return errors.New("too late")
	})))
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	pgtest.Receive(t, started, "the handler")
	pgtest.Execute(t, pool, stealSQL, id, uuid.New())
	close(open)
	log.Await(t, `msg="event failed and was lost to another claim"`)
	require.NoError(t, stop())
	require.Empty(t, runtimetest.StateOf(t, pool, id).LastError)
}

// TestLeaseRunsOutWithoutDatabase: a handler is cancelled before its lease ends if no renewal succeeds.
func TestLeaseRunsOutWithoutDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	cfg := shortLease()
	cfg.LeaseDuration = 2 * runtimetest.CrashLease // it is given up two seconds before its end
	type ending struct {
		cause error
		after time.Duration
	}
	started, ended := make(chan struct{}), make(chan ending, 1)
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, _ outbox.Delivery[runtimetest.Job]) error {
		begin := time.Now()
		close(started)
		<-ctx.Done()
		ended <- ending{context.Cause(ctx), time.Since(begin)}
		return nil
	}))
	stop := runtimetest.StartDispatcher(t, d)
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	pgtest.Receive(t, started, "the handler")
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM outbox.queue WHERE id = $1 FOR UPDATE", id) // a renewal waits for this lock
	require.NoError(t, err)
	e := pgtest.Receive(t, ended, "the cancelled context")
	require.NoError(t, tx.Rollback(t.Context()))
	require.ErrorIs(t, e.cause, outbox.ErrLeaseLost)
	require.Less(t, e.after, cfg.LeaseDuration, "cancelled before the lease is over")
	pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL) // no other worker took it, so the ack is applied
	require.NoError(t, stop())
}

// TestQueuedEventWithLostLeaseIsNotStarted: an event that loses its lease while it waits for a worker is not run.
func TestQueuedEventWithLostLeaseIsNotStarted(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	log := runtimetest.NewLogSpy()
	cfg := shortLease()
	cfg.Concurrency, cfg.Logger = 1, log.Logger()
	started, open := make(chan int64, 10), make(chan struct{})
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		started <- d.Payload.N
		<-open
		return nil
	})))
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(2)...)
	first := pgtest.Receive(t, started, "the first handler")
	second := ids[1-first]
	pgtest.Execute(t, pool, stealSQL, second, uuid.New())
	log.Await(t, `msg="lease lost"`)
	close(open)
	log.Await(t, `msg="event lost"`)
	pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	require.Empty(t, started)
	require.EqualValues(t, 2, runtimetest.StateOf(t, pool, second).ClaimNo)
}

// lastAttempt puts an event into the state after a worker died on the last attempt but one.
func lastAttempt(t testing.TB, pool *pgxpool.Pool, id uuid.UUID) {
	t.Helper()
	pgtest.Execute(t, pool, `UPDATE testing.events SET status = 'processing', attempts = max_attempts - 1, claim_no = 4,
		locked_by = $2, locked_until = now() - interval '1 s', next_attempt_at = now() WHERE id = $1`, id, uuid.New())
}

// TestReclaimedLastAttemptRunsAlone: an event that may kill the process runs with nothing else in flight.
func TestReclaimedLastAttemptRunsAlone(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	var running runtimetest.Gauge
	started, open := make(chan int64, 10), make(chan struct{})
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		defer running.Leave()
		n := running.Enter()
		started <- d.Payload.N
		if d.Payload.N < 3 {
			<-open
		} else if n > 1 {
			return outbox.Permanent(errors.New("not alone"))
		}
		return nil
	}))
	queue.LimitLastAttempt(d, time.Hour) // enough for a busy machine
	stop := runtimetest.StartDispatcher(t, d)
	jobs := runtimetest.NumberedJobs(5)
	runtimetest.EnqueueJobs(t, pool, topic, jobs[:3]...)
	for range 3 {
		pgtest.Receive(t, started, "a handler")
	}
	late := enqueueLater(t, pool, topic, jobs[3:]...)
	for _, id := range late {
		lastAttempt(t, pool, id)
	}
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE attempts = max_attempts AND locked_until > now()") // one is claimed, and waits
	require.Empty(t, started)
	close(open)
	pgtest.Settles(t, pool, 5, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
}

// TestStopHandsBackLastAttempt: a reclaimed event that waits to run alone is handed back with its last attempt.
func TestStopHandsBackLastAttempt(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	started, open := make(chan struct{}, 2), make(chan struct{})
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		started <- struct{}{}
		<-open
		return nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	jobs := runtimetest.NumberedJobs(2)
	runtimetest.EnqueueJobs(t, pool, topic, jobs[0])
	pgtest.Receive(t, started, "the handler")
	id := enqueueLater(t, pool, topic, jobs[1])[0]
	lastAttempt(t, pool, id)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE attempts = max_attempts")
	cancel()
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE id = $1 AND status = 'pending' AND attempts = max_attempts - 1", id)
	close(open)
	require.NoError(t, pgtest.Receive(t, ended, "the end of Run"))
	require.Empty(t, started)
}

// enqueueLater commits events that are not due yet.
func enqueueLater(t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[runtimetest.Job], jobs ...runtimetest.Job) []uuid.UUID {
	t.Helper()
	var ids []uuid.UUID
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		receipts, err := topic.EnqueueMany(t.Context(), tx, jobs, outbox.WithNotBefore(time.Now().Add(time.Hour)))
		for _, r := range receipts {
			ids = append(ids, r.ID)
		}
		return err
	}))
	return ids
}
