package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// shortLease is a lease that a test can wait for and a busy machine can keep.
func shortLease() outbox.DispatcherConfig {
	return outbox.DispatcherConfig{LeaseDuration: crashLease, PollInterval: 50 * time.Millisecond, Logger: quiet()}
}

// TestLeaseIsRenewed runs a handler for longer than its lease beside an idle dispatcher: invariant I4.
func TestLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	var running gauge
	var ids []uuid.UUID
	started, open := make(chan struct{}, 10), make(chan struct{})
	handler := onJob(topic, func(ctx context.Context, _ outbox.Delivery[job]) error {
		running.enter()
		defer running.leave()
		started <- struct{}{}
		select {
		case <-open:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	holder := dispatcher(t, pool, shortLease(), handler)
	watch := outbox.Watch(holder)
	stopHolder := start(t, holder)
	ids = enqueueJobs(t, pool, topic, numbered(1)...)
	receive(t, started, "the handler")
	rival := dispatcher(t, pool, shortLease(), handler)
	stopRival := start(t, rival)
	first := value[time.Time](t, pool, "SELECT locked_until FROM outbox.events")
	for value[bool](t, pool, "SELECT statement_timestamp() <= $1", first) {
		receive(t, watch.Renewed, "a renewal")
	}
	require.Equal(t, eventState{Status: "processing", Attempts: 1, MaxAttempts: 5, ClaimNo: 1, Leased: true}, withoutDue(stateOf(t, pool, ids[0])))
	close(open)
	settles(t, pool, 1, delivered)
	require.NoError(t, stopHolder())
	require.NoError(t, stopRival())
	require.EqualValues(t, 1, running.most.Load())
	require.Equal(t, 1, stateOf(t, pool, ids[0]).Attempts)
}

// stealSQL hands an event to another worker, as a claim after the end of its lease would.
const stealSQL = `UPDATE outbox.events
	SET claim_no = claim_no + 1, attempts = attempts + 1, locked_by = $2, locked_until = now() + interval '1 h'
	WHERE id = $1`

func TestLeaseLostCancelsTheHandler(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	log := newSpy()
	cfg := shortLease()
	cfg.Logger = log.logger()
	started, cause := make(chan struct{}), make(chan error, 1)
	d := dispatcher(t, pool, cfg, onJob(topic, func(ctx context.Context, _ outbox.Delivery[job]) error {
		close(started)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return errors.New("gave up")
	}))
	stop := start(t, d)
	id := enqueueJobs(t, pool, topic, numbered(1)...)[0]
	receive(t, started, "the handler")
	execute(t, pool, stealSQL, id, uuid.New())
	require.ErrorIs(t, receive(t, cause, "the cancelled context"), outbox.ErrLeaseLost)
	log.await(t, `msg="lease lost"`)
	log.await(t, `msg="event lost"`)
	require.NoError(t, stop())
	r := stateOf(t, pool, id)
	require.Equal(t, eventState{Status: "processing", Attempts: 2, MaxAttempts: 5, ClaimNo: 2, Leased: true}, withoutDue(r), "never nacked")
}

func TestSuccessAfterLossIsLost(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	log := newSpy()
	cfg := shortLease()
	cfg.Logger = log.logger()
	started, open := make(chan struct{}), make(chan struct{})
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(context.Context, outbox.Delivery[job]) error {
		close(started)
		<-open
		return nil
	})))
	id := enqueueJobs(t, pool, topic, numbered(1)...)[0]
	receive(t, started, "the handler")
	execute(t, pool, stealSQL, id, uuid.New())
	close(open) // before a renewal notices, or after: the fence decides either way
	line := log.await(t, `msg="event was handled but lost to another claim"`)
	require.Contains(t, line, "level=ERROR")
	require.Contains(t, line, "event_id="+id.String())
	require.NoError(t, stop())
	r := stateOf(t, pool, id)
	require.Equal(t, "processing", r.Status)
	require.EqualValues(t, 2, r.ClaimNo)
}

// TestFailureAfterLossChangesNothing: an error that no renewal has foreseen is nacked, and the fence refuses.
func TestFailureAfterLossChangesNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	log := newSpy()
	cfg := outbox.DispatcherConfig{LeaseDuration: time.Minute, Logger: log.logger()} // no renewal meanwhile
	started, open := make(chan struct{}), make(chan struct{})
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(context.Context, outbox.Delivery[job]) error {
		close(started)
		<-open
		return errors.New("too late")
	})))
	id := enqueueJobs(t, pool, topic, numbered(1)...)[0]
	receive(t, started, "the handler")
	execute(t, pool, stealSQL, id, uuid.New())
	close(open)
	log.await(t, `msg="event failed and was lost to another claim"`)
	require.NoError(t, stop())
	require.Empty(t, stateOf(t, pool, id).LastError)
}

// TestLeaseRunsOutWithoutDatabase: a handler is cancelled before its lease ends when no renewal gets through.
func TestLeaseRunsOutWithoutDatabase(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	cfg := shortLease()
	cfg.LeaseDuration = 2 * crashLease // it is given up two seconds before its end
	type ending struct {
		cause error
		after time.Duration
	}
	started, ended := make(chan struct{}), make(chan ending, 1)
	d := dispatcher(t, pool, cfg, onJob(topic, func(ctx context.Context, _ outbox.Delivery[job]) error {
		begin := time.Now()
		close(started)
		<-ctx.Done()
		ended <- ending{context.Cause(ctx), time.Since(begin)}
		return nil
	}))
	stop := start(t, d)
	id := enqueueJobs(t, pool, topic, numbered(1)...)[0]
	receive(t, started, "the handler")
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM outbox.events WHERE id = $1 FOR UPDATE", id) // a renewal waits for it
	require.NoError(t, err)
	e := receive(t, ended, "the cancelled context")
	require.NoError(t, tx.Rollback(t.Context()))
	require.ErrorIs(t, e.cause, outbox.ErrLeaseLost)
	require.Less(t, e.after, cfg.LeaseDuration, "cancelled before the lease is over")
	settles(t, pool, 1, delivered) // nobody else took it, so the ack counts
	require.NoError(t, stop())
}

// TestQueuedEventWithLostLeaseIsNotStarted: what waits for a worker and loses its lease meanwhile is not run.
func TestQueuedEventWithLostLeaseIsNotStarted(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	log := newSpy()
	cfg := shortLease()
	cfg.Concurrency, cfg.Logger = 1, log.logger()
	started, open := make(chan int64, 10), make(chan struct{})
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		started <- d.Payload.N
		<-open
		return nil
	})))
	ids := enqueueJobs(t, pool, topic, numbered(2)...)
	first := receive(t, started, "the first handler")
	second := ids[1-first]
	execute(t, pool, stealSQL, second, uuid.New())
	log.await(t, `msg="lease lost"`)
	close(open)
	log.await(t, `msg="event lost"`)
	settles(t, pool, 1, delivered)
	require.NoError(t, stop())
	require.Empty(t, started)
	require.EqualValues(t, 2, stateOf(t, pool, second).ClaimNo)
}

// lastAttempt puts an event where a worker that died on its last attempt but one has left it.
func lastAttempt(t testing.TB, pool *pgxpool.Pool, id uuid.UUID) {
	t.Helper()
	execute(t, pool, `UPDATE outbox.events SET status = 'processing', attempts = max_attempts - 1, claim_no = 4,
		locked_by = $2, locked_until = now() - interval '1 s', next_attempt_at = now() WHERE id = $1`, id, uuid.New())
}

// TestReclaimedLastAttemptRunsAlone: what may kill the process does so with nothing else in flight.
func TestReclaimedLastAttemptRunsAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	var running gauge
	started, open := make(chan int64, 10), make(chan struct{})
	d := dispatcher(t, pool, quick(), onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		defer running.leave()
		n := running.enter()
		started <- d.Payload.N
		if d.Payload.N < 3 {
			<-open
		} else if n > 1 {
			return outbox.Permanent(errors.New("not alone"))
		}
		return nil
	}))
	outbox.LimitLastAttempt(d, time.Hour) // however long a busy machine takes
	stop := start(t, d)
	jobs := numbered(5)
	enqueueJobs(t, pool, topic, jobs[:3]...)
	for range 3 {
		receive(t, started, "a handler")
	}
	late := enqueueLater(t, pool, topic, jobs[3:]...)
	for _, id := range late {
		lastAttempt(t, pool, id)
	}
	settles(t, pool, 1, "SELECT count(*) FROM outbox.events WHERE attempts = max_attempts AND locked_until > now()") // one is claimed, and waits
	require.Empty(t, started)
	close(open)
	settles(t, pool, 5, delivered)
	require.NoError(t, stop())
}

// TestStopHandsBackLastAttempt: a reclaimed event that waits to run alone is handed back with its last attempt.
func TestStopHandsBackLastAttempt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	started, open := make(chan struct{}, 2), make(chan struct{})
	d := dispatcher(t, pool, quick(), onJob(topic, func(context.Context, outbox.Delivery[job]) error {
		started <- struct{}{}
		<-open
		return nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	jobs := numbered(2)
	enqueueJobs(t, pool, topic, jobs[0])
	receive(t, started, "the handler")
	id := enqueueLater(t, pool, topic, jobs[1])[0]
	lastAttempt(t, pool, id)
	settles(t, pool, 1, "SELECT count(*) FROM outbox.events WHERE attempts = max_attempts")
	cancel()
	settles(t, pool, 1, "SELECT count(*) FROM outbox.events WHERE id = $1 AND status = 'pending' AND attempts = max_attempts - 1", id)
	close(open)
	require.NoError(t, receive(t, ended, "the end of Run"))
	require.Empty(t, started)
}

// enqueueLater commits events that are not due yet.
func enqueueLater(t testing.TB, pool *pgxpool.Pool, topic outbox.Topic[job], jobs ...job) []uuid.UUID {
	t.Helper()
	var ids []uuid.UUID
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		receipts, err := topic.Untyped().EnqueueMany(t.Context(), tx, jobs, outbox.WithNotBefore(time.Now().Add(time.Hour)))
		for _, r := range receipts {
			ids = append(ids, r.ID)
		}
		return err
	}))
	return ids
}
