package queue_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestRetryDelayHasEqualJitter(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) {
		s.Retry = outbox.Retry{MaxAttempts: 9, BaseDelay: time.Minute, MaxDelay: 10 * time.Minute}
	})
	ids := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(20)...)
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		return errors.New("not today")
	})))
	want := time.Minute
	for attempt := 1; attempt <= 6; attempt++ {
		pgtest.Settles(t, pool, len(ids), "SELECT count(*) FROM testing.events WHERE status = 'pending' AND attempts = $1", attempt)
		different := make(map[time.Duration]bool)
		for _, id := range ids {
			r := runtimetest.StateOf(t, pool, id)
			require.Equal(t, "not today", r.LastError)
			require.Equal(t, 9, r.MaxAttempts)
			require.GreaterOrEqual(t, r.DueIn, want/2)
			require.LessOrEqual(t, r.DueIn, want+time.Second)
			different[r.DueIn] = true
		}
		require.Greater(t, len(different), len(ids)/2, "spread out")
		pgtest.Execute(t, pool, "UPDATE testing.events SET next_attempt_at = now()")
		want = min(2*want, 10*time.Minute)
	}
	require.NoError(t, stop())
}

// fail runs a handler on one event until the event is no longer due, and returns the event's state.
func fail(t *testing.T, topic outbox.Topic[runtimetest.Job], log *runtimetest.LogSpy, fn runtimetest.JobFunc) runtimetest.EventState {
	t.Helper()
	pool := pgtest.Database(t)
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency, cfg.Logger = 1, log.Logger()
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, fn)))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE id = $1 AND attempts > 0 AND status <> 'processing' AND (status = 'dead' OR next_attempt_at > now() + interval '10 min')", id)
	// The worker that had it, or its successor, still works.
	settled := runtimetest.JobTopic(topic.Untyped().Spec().Name)
	settled = runtimetest.Altered(settled, func(s *outbox.TopicSpec) { s.Keys = nil })
	other := runtimetest.EnqueueJobs(t, pool, settled, runtimetest.Job{N: -1})[0]
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE id = $1 AND attempts > 0 AND status <> 'processing'", other)
	require.NoError(t, stop())
	return runtimetest.StateOf(t, pool, id)
}

func slowRetry() outbox.Topic[runtimetest.Job] {
	topic := runtimetest.JobTopic("one")
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) {
		s.Retry = outbox.Retry{MaxAttempts: 3, BaseDelay: time.Hour, MaxDelay: time.Hour}
	})
	return topic
}

func TestPermanentErrorIsDeadImmediately(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	log := runtimetest.NewLogSpy()
	r := fail(t, slowRetry(), log, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		return fmt.Errorf("settle: %w", outbox.Permanent(errors.New("no such account")))
	})
	require.Equal(t, runtimetest.EventState{Status: "dead", Attempts: 1, MaxAttempts: 3, ClaimNo: 1, LastError: "settle: no such account"}, runtimetest.WithoutDue(r))
	require.Contains(t, log.Await(t, `msg="event is dead"`), `error="settle: no such account"`)
	require.NoError(t, outbox.Permanent(nil))
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	r := fail(t, slowRetry(), runtimetest.NewLogSpy(), func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		return fmt.Errorf("call: %w", outbox.RetryAfter(time.Hour, errors.New("503")))
	})
	require.Equal(t, "pending", r.Status)
	require.Equal(t, 1, r.Attempts)
	require.Equal(t, "call: 503", r.LastError)
	require.InDelta(t, time.Hour, r.DueIn, float64(time.Minute))
	require.NoError(t, outbox.RetryAfter(time.Second, nil))
}

func TestMaxAttemptsSpentIsDead(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	var attempts []int
	r := fail(t, runtimetest.JobTopic("one"), runtimetest.NewLogSpy(), func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if d.Payload.N < 0 {
			return nil
		}
		attempts = append(attempts, d.Attempt)
		return fmt.Errorf("attempt %d of %d", d.Attempt, d.MaxAttempts)
	})
	require.Equal(t, runtimetest.EventState{Status: "dead", Attempts: 5, MaxAttempts: 5, ClaimNo: 5, LastError: "attempt 5 of 5"}, runtimetest.WithoutDue(r))
	require.Equal(t, []int{1, 2, 3, 4, 5}, attempts)
}

func TestConfiguredMaxAttemptsWins(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	cfg := runtimetest.QuickConfig()
	cfg.MaxAttempts = 2
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error { return errors.New("no") })))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM testing.events WHERE status = 'dead'")
	require.NoError(t, stop())
	r := runtimetest.StateOf(t, pool, id)
	require.Equal(t, 2, r.Attempts)
	require.Equal(t, 2, r.MaxAttempts, "recorded with the event")
}

type customPanic struct{ code int }

func (c customPanic) Error() string { return fmt.Sprintf("custom %d", c.code) }

func handlerThatPanics(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
	if d.Payload.N < 0 {
		return nil
	}
	var none *customPanic
	return fmt.Errorf("code %d", none.code)
}

func handlerThatExits(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
	if d.Payload.N >= 0 {
		runtime.Goexit()
	}
	return nil
}

func TestPanicsAreNacked(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for name, c := range map[string]struct {
		handler  runtimetest.JobFunc
		text, at string
	}{
		"nil pointer": {handlerThatPanics, "handler panicked: runtime error: invalid memory address or nil pointer dereference\n", "queue_test.handlerThatPanics"},
		"custom":      {func(context.Context, outbox.Delivery[runtimetest.Job]) error { panic(customPanic{7}) }, "handler panicked: custom 7\n", "queue_test.TestPanicsAreNacked"},
		"nil":         {func(context.Context, outbox.Delivery[runtimetest.Job]) error { panic(nil) }, "handler panicked: panic called with nil argument", "queue_test.TestPanicsAreNacked"},
		"hostile text": {
			func(context.Context, outbox.Delivery[runtimetest.Job]) error {
				panic("\x00\xff" + strings.Repeat("x", 1<<20))
			},
			"handler panicked: ??xxx", "queue_test.TestPanicsAreNacked",
		},
		"Goexit": {handlerThatExits, "handler called runtime.Goexit\n", "queue_test.handlerThatExits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := runtimetest.NewLogSpy()
			r := fail(t, slowRetry(), log, c.handler)
			require.Equal(t, "pending", r.Status)
			require.Equal(t, 1, r.Attempts)
			require.True(t, strings.HasPrefix(r.LastError, c.text), r.LastError)
			require.Contains(t, r.LastError, c.at, "the stack")
			require.LessOrEqual(t, len(r.LastError), 2048)
			require.Contains(t, log.Await(t, `msg="handler did not return"`), c.at)
		})
	}
}

// TestWorkersAreReplaced: after Goexit has ended each worker, as many handlers run as before.
func TestWorkersAreReplaced(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := slowRetry()
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency = 3
	var running runtimetest.Gauge
	full := make(chan struct{})
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if d.Payload.Secret == "exit" {
			runtime.Goexit()
		}
		defer running.Leave()
		if running.Enter() == 3 {
			close(full)
		}
		<-full
		return nil
	})))
	jobs := runtimetest.NumberedJobs(10)
	for i := range jobs {
		jobs[i].Secret = "exit"
	}
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	pgtest.Settles(t, pool, 10, "SELECT count(*) FROM testing.events WHERE status = 'pending' AND attempts = 1")
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	pgtest.Settles(t, pool, 3, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
}

func TestUndecodablePayloadIsDeadWithoutItsValue(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	topic := slowRetry()
	log := runtimetest.NewLogSpy()
	cfg := runtimetest.QuickConfig()
	cfg.Logger = log.Logger()
	const secret = "4111-1111-1111-1111"
	var ids []uuid.UUID
	for _, payload := range []string{
		`{"n": "` + secret + `"}`, `{"tenant_id": "` + secret + `"}`, `{"n": 41111111111111111111}`, `"` + secret + `"`, "null",
	} {
		var id uuid.UUID
		require.NoError(t, pool.QueryRow(t.Context(), "INSERT INTO testing.events (namespace, topic, payload) VALUES ('jobs', 'one', $1) RETURNING id", payload).Scan(&id))
		ids = append(ids, id)
	}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, runtimetest.Succeed)))
	pgtest.Settles(t, pool, len(ids), "SELECT count(*) FROM testing.events WHERE status = 'dead' AND attempts = 1")
	require.NoError(t, stop())
	var texts []string
	for _, id := range ids {
		texts = append(texts, runtimetest.StateOf(t, pool, id).LastError)
	}
	require.Equal(t, []string{
		`decode payload: field "n" does not fit int64`,
		`decode payload: a field does not fit its type`,
		`decode payload: field "n" does not fit int64`,
		`decode payload: it is a JSON string, which is not a valid runtimetest.Job`,
		`decode payload: it is null, which is not a valid runtimetest.Job`,
	}, texts)
	require.NotContains(t, log.String(), "4111-1111")
	require.NotContains(t, log.String(), "411111111111")
}

// TestLogsHoldNoPayload produces every result of an event, with a secret in each payload.
func TestLogsHoldNoPayload(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const secret = "swordfish"
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	log := runtimetest.NewLogSpy()
	cfg := shortLease()
	cfg.Logger = log.Logger()
	jobs := runtimetest.NumberedJobs(6)
	for i := range jobs {
		jobs[i].Secret = secret
	}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
		switch d.Payload.N {
		case 0:
			return errors.New("fails")
		case 1:
			return outbox.Permanent(errors.New("refused"))
		case 2:
			panic("panics")
		case 3:
			runtime.Goexit()
		case 4:
			_, err := pool.Exec(context.Background(), stealSQL, d.ID, uuid.New())
			<-ctx.Done()
			return err
		}
		return nil
	})))
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	log.Await(t, "lost to another claim")
	pgtest.Settles(t, pool, 4, "SELECT count(*) FROM testing.events WHERE status = 'dead'")
	pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
	require.NotContains(t, log.String(), secret)
	require.Contains(t, log.String(), "refused")
}

// Each line about an event has its attributes, including the tenant, and does not put them in a group.
func TestLogLinesOfEventsTellTheirTenant(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	log := runtimetest.NewLogSpy()
	cfg := runtimetest.QuickConfig()
	cfg.Logger = log.Logger()
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(slowRetry(), func(context.Context, outbox.Delivery[runtimetest.Job]) error { return errors.New("no") }))
	jobs := runtimetest.NumberedJobs(1)
	runtimetest.EnqueueJobs(t, pool, slowRetry(), jobs...)
	_, err := d.Drain(t.Context())
	require.NoError(t, err)
	line := log.Await(t, `msg="event failed"`)
	require.Contains(t, line, " dispatcher=jobs ")
	require.Contains(t, line, " namespace=jobs topic=one event_id=")
	require.Contains(t, line, " attempt=1 tenant_id="+jobs[0].TenantID.String()+" error=no")
}
