package outbox_test

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

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestRetryDelayHasEqualJitter(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	topic = altered(topic, func(s *outbox.TopicSpec) {
		s.Retry = outbox.Retry{MaxAttempts: 9, BaseDelay: time.Minute, MaxDelay: 10 * time.Minute}
	})
	ids := enqueueJobs(t, pool, topic, numbered(20)...)
	stop := start(t, dispatcher(t, pool, quick(), onJob(topic, func(context.Context, outbox.Delivery[job]) error {
		return errors.New("not today")
	})))
	want := time.Minute
	for attempt := 1; attempt <= 6; attempt++ {
		settles(t, pool, len(ids), "SELECT count(*) FROM outbox.events WHERE status = 'pending' AND attempts = $1", attempt)
		different := make(map[time.Duration]bool)
		for _, id := range ids {
			r := stateOf(t, pool, id)
			require.Equal(t, "not today", r.LastError)
			require.Equal(t, 9, r.MaxAttempts)
			require.GreaterOrEqual(t, r.DueIn, want/2)
			require.LessOrEqual(t, r.DueIn, want+time.Second)
			different[r.DueIn] = true
		}
		require.Greater(t, len(different), len(ids)/2, "spread out")
		execute(t, pool, "UPDATE outbox.events SET next_attempt_at = now()")
		want = min(2*want, 10*time.Minute)
	}
	require.NoError(t, stop())
}

// fail runs one event through a handler until the event is no longer due, and returns where it stands.
func fail(t *testing.T, topic outbox.Topic[job], log *spy, fn jobFunc) eventState {
	t.Helper()
	pool := pgtest.Database(t)
	id := enqueueJobs(t, pool, topic, numbered(1)...)[0]
	cfg := quick()
	cfg.Concurrency, cfg.Logger = 1, log.logger()
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, fn)))
	settles(t, pool, 1, "SELECT count(*) FROM outbox.events WHERE id = $1 AND attempts > 0 AND status <> 'processing' AND (status = 'dead' OR next_attempt_at > now() + interval '10 min')", id)
	// The worker that had it, or its successor, still works.
	settled := jobTopic(topic.Untyped().Spec().Name)
	settled = altered(settled, func(s *outbox.TopicSpec) { s.Keys = nil })
	other := enqueueJobs(t, pool, settled, job{N: -1})[0]
	settles(t, pool, 1, "SELECT count(*) FROM outbox.events WHERE id = $1 AND attempts > 0 AND status <> 'processing'", other)
	require.NoError(t, stop())
	return stateOf(t, pool, id)
}

func slowRetry() outbox.Topic[job] {
	topic := jobTopic("one")
	topic = altered(topic, func(s *outbox.TopicSpec) {
		s.Retry = outbox.Retry{MaxAttempts: 3, BaseDelay: time.Hour, MaxDelay: time.Hour}
	})
	return topic
}

func TestPermanentErrorIsDeadImmediately(t *testing.T) {
	t.Parallel()
	log := newSpy()
	r := fail(t, slowRetry(), log, func(context.Context, outbox.Delivery[job]) error {
		return fmt.Errorf("settle: %w", outbox.Permanent(errors.New("no such account")))
	})
	require.Equal(t, eventState{Status: "dead", Attempts: 1, MaxAttempts: 3, ClaimNo: 1, LastError: "settle: no such account"}, withoutDue(r))
	require.Contains(t, log.await(t, `msg="event is dead"`), `error="settle: no such account"`)
	require.NoError(t, outbox.Permanent(nil))
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	r := fail(t, slowRetry(), newSpy(), func(context.Context, outbox.Delivery[job]) error {
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
	var attempts []int
	r := fail(t, jobTopic("one"), newSpy(), func(_ context.Context, d outbox.Delivery[job]) error {
		if d.Payload.N < 0 {
			return nil
		}
		attempts = append(attempts, d.Attempt)
		return fmt.Errorf("attempt %d of %d", d.Attempt, d.MaxAttempts)
	})
	require.Equal(t, eventState{Status: "dead", Attempts: 5, MaxAttempts: 5, ClaimNo: 5, LastError: "attempt 5 of 5"}, withoutDue(r))
	require.Equal(t, []int{1, 2, 3, 4, 5}, attempts)
}

func TestConfiguredMaxAttemptsWins(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	id := enqueueJobs(t, pool, topic, numbered(1)...)[0]
	cfg := quick()
	cfg.MaxAttempts = 2
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(context.Context, outbox.Delivery[job]) error { return errors.New("no") })))
	settles(t, pool, 1, "SELECT count(*) FROM outbox.events WHERE status = 'dead'")
	require.NoError(t, stop())
	r := stateOf(t, pool, id)
	require.Equal(t, 2, r.Attempts)
	require.Equal(t, 2, r.MaxAttempts, "recorded with the event")
}

type customPanic struct{ code int }

func (c customPanic) Error() string { return fmt.Sprintf("custom %d", c.code) }

func handlerThatPanics(_ context.Context, d outbox.Delivery[job]) error {
	if d.Payload.N < 0 {
		return nil
	}
	var none *customPanic
	return fmt.Errorf("code %d", none.code)
}

func handlerThatExits(_ context.Context, d outbox.Delivery[job]) error {
	if d.Payload.N >= 0 {
		runtime.Goexit()
	}
	return nil
}

func TestPanicsAreNacked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler  jobFunc
		text, at string
	}{
		"nil pointer": {handlerThatPanics, "handler panicked: runtime error: invalid memory address or nil pointer dereference\n", "outbox_test.handlerThatPanics"},
		"custom":      {func(context.Context, outbox.Delivery[job]) error { panic(customPanic{7}) }, "handler panicked: custom 7\n", "outbox_test.TestPanicsAreNacked"},
		"nil":         {func(context.Context, outbox.Delivery[job]) error { panic(nil) }, "handler panicked: panic called with nil argument", "outbox_test.TestPanicsAreNacked"},
		"hostile text": {
			func(context.Context, outbox.Delivery[job]) error { panic("\x00\xff" + strings.Repeat("x", 1<<20)) },
			"handler panicked: ??xxx", "outbox_test.TestPanicsAreNacked",
		},
		"Goexit": {handlerThatExits, "handler called runtime.Goexit\n", "outbox_test.handlerThatExits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := newSpy()
			r := fail(t, slowRetry(), log, c.handler)
			require.Equal(t, "pending", r.Status)
			require.Equal(t, 1, r.Attempts)
			require.True(t, strings.HasPrefix(r.LastError, c.text), r.LastError)
			require.Contains(t, r.LastError, c.at, "the stack")
			require.LessOrEqual(t, len(r.LastError), 2048)
			require.Contains(t, log.await(t, `msg="handler did not return"`), c.at)
		})
	}
}

// TestWorkersAreReplaced: as many handlers as ever run after each worker was ended by Goexit.
func TestWorkersAreReplaced(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := slowRetry()
	cfg := quick()
	cfg.Concurrency = 3
	var running gauge
	full := make(chan struct{})
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(_ context.Context, d outbox.Delivery[job]) error {
		if d.Payload.Secret == "exit" {
			runtime.Goexit()
		}
		defer running.leave()
		if running.enter() == 3 {
			close(full)
		}
		<-full
		return nil
	})))
	jobs := numbered(10)
	for i := range jobs {
		jobs[i].Secret = "exit"
	}
	enqueueJobs(t, pool, topic, jobs...)
	settles(t, pool, 10, "SELECT count(*) FROM outbox.events WHERE status = 'pending' AND attempts = 1")
	enqueueJobs(t, pool, topic, numbered(3)...)
	settles(t, pool, 3, delivered)
	require.NoError(t, stop())
}

func TestNewerPayloadVersionIsNacked(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := slowRetry()
	newer := topic
	newer = altered(newer, func(s *outbox.TopicSpec) { s.Version = 2 })
	id := enqueueJobs(t, pool, newer, numbered(1)...)[0]
	stop := start(t, dispatcher(t, pool, quick(), onJob(topic, succeed)))
	settles(t, pool, 1, "SELECT count(*) FROM outbox.events WHERE status = 'pending' AND attempts = 1")
	require.NoError(t, stop())
	r := stateOf(t, pool, id)
	require.Equal(t, "payload has version 2, this process knows 1", r.LastError)
	require.Greater(t, r.DueIn, 29*time.Minute)
}

func TestUndecodablePayloadIsDeadWithoutItsValue(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := slowRetry()
	log := newSpy()
	cfg := quick()
	cfg.Logger = log.logger()
	const secret = "4111-1111-1111-1111"
	var ids []uuid.UUID
	for _, payload := range []string{
		`{"n": "` + secret + `"}`, `{"tenant_id": "` + secret + `"}`, `{"n": 41111111111111111111}`, `"` + secret + `"`, "null",
	} {
		var id uuid.UUID
		require.NoError(t, pool.QueryRow(t.Context(), "INSERT INTO outbox.events (namespace, topic, payload) VALUES ('jobs', 'one', $1) RETURNING id", payload).Scan(&id))
		ids = append(ids, id)
	}
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, succeed)))
	settles(t, pool, len(ids), "SELECT count(*) FROM outbox.events WHERE status = 'dead' AND attempts = 1")
	require.NoError(t, stop())
	var texts []string
	for _, id := range ids {
		texts = append(texts, stateOf(t, pool, id).LastError)
	}
	require.Equal(t, []string{
		`decode payload: field "n" does not fit int64`,
		`decode payload: a field does not fit its type`,
		`decode payload: field "n" does not fit int64`,
		`decode payload: field "" does not fit outbox_test.job`,
		`decode payload: it is null, which is not a valid outbox_test.job`,
	}, texts)
	require.NotContains(t, log.String(), "4111")
}

// TestLogsHoldNoPayload runs every way in which an event can end, with a secret in each payload.
func TestLogsHoldNoPayload(t *testing.T) {
	t.Parallel()
	const secret = "swordfish"
	pool := pgtest.Database(t)
	topic := jobTopic("one")
	log := newSpy()
	cfg := shortLease()
	cfg.Logger = log.logger()
	jobs := numbered(6)
	for i := range jobs {
		jobs[i].Secret = secret
	}
	stop := start(t, dispatcher(t, pool, cfg, onJob(topic, func(ctx context.Context, d outbox.Delivery[job]) error {
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
	enqueueJobs(t, pool, topic, jobs...)
	log.await(t, "lost to another claim")
	settles(t, pool, 4, "SELECT count(*) FROM outbox.events WHERE status = 'dead'")
	settles(t, pool, 1, delivered)
	require.NoError(t, stop())
	require.NotContains(t, log.String(), secret)
	require.Contains(t, log.String(), "refused")
}

// Each line about an event tells what it is, its tenant included, and does not put it in a group.
func TestLogLinesOfEventsTellTheirTenant(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	log := newSpy()
	cfg := quick()
	cfg.Logger = log.logger()
	d := dispatcher(t, pool, cfg, onJob(slowRetry(), func(context.Context, outbox.Delivery[job]) error { return errors.New("no") }))
	jobs := numbered(1)
	enqueueJobs(t, pool, slowRetry(), jobs...)
	_, err := d.Drain(t.Context())
	require.NoError(t, err)
	line := log.await(t, `msg="event failed"`)
	require.Contains(t, line, " dispatcher=jobs ")
	require.Contains(t, line, " namespace=jobs topic=one event_id=")
	require.Contains(t, line, " attempt=1 tenant_id="+jobs[0].TenantID.String()+" error=no")
}
