package runtimetest_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// failsAlways drains a topic with the given retries, whose only event always fails, once per attempt. It returns the
// final state of the event and the delay of its second attempt.
func failsAlways(t *testing.T, yaml outbox.Retry, cfg queue.Config) (runtimetest.EventState, time.Duration) {
	t.Helper()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("one")
	topic = runtimetest.Altered(topic, func(s *outbox.TopicSpec) { s.Retry = yaml })
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	d := runtimetest.Dispatcher(t, pool, cfg, runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error { return runtimetest.ErrHandler }))
	_, err := d.Drain(t.Context())
	require.NoError(t, err)
	delay := untilDue(t, pool, id)
	for runtimetest.WithoutDue(runtimetest.StateOf(t, pool, id)).Status == "pending" {
		pgtest.Execute(t, pool, "UPDATE testing.events SET next_attempt_at = statement_timestamp() WHERE id = $1", id)
		_, err := d.Drain(t.Context())
		require.NoError(t, err)
	}
	return runtimetest.WithoutDue(runtimetest.StateOf(t, pool, id)), delay
}

func untilDue(t *testing.T, pool *pgxpool.Pool, id uuid.UUID) time.Duration {
	t.Helper()
	return pgtest.Value[time.Duration](t, pool, "SELECT next_attempt_at - statement_timestamp() FROM testing.events WHERE id = $1", id)
}

// TestConfiguredRetryOverridesFieldByField: the fields that the config sets replace those of the YAML, also for events
// that were enqueued with another limit. Zero fields change nothing.
func TestConfiguredRetryOverridesFieldByField(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	yaml := outbox.Retry{MaxAttempts: 3, BaseDelay: 2 * time.Hour, MaxDelay: 2 * time.Hour}
	for name, c := range map[string]struct {
		cfg      queue.Config
		attempts int
		delay    time.Duration // without jitter
	}{
		"nothing":           {queue.Config{}, 3, 2 * time.Hour},
		"attempts":          {queue.Config{Retry: outbox.Retry{MaxAttempts: 2}}, 2, 2 * time.Hour},
		"more attempts":     {queue.Config{Retry: outbox.Retry{MaxAttempts: 4}}, 4, 2 * time.Hour},
		"base delay":        {queue.Config{Retry: outbox.Retry{BaseDelay: 20 * time.Minute}}, 3, 20 * time.Minute},
		"max delay":         {queue.Config{Retry: outbox.Retry{MaxDelay: 20 * time.Minute}}, 3, 20 * time.Minute},
		"MaxAttempts wins":  {queue.Config{MaxAttempts: 2, Retry: outbox.Retry{MaxAttempts: 4}}, 2, 2 * time.Hour},
		"longer than limit": {queue.Config{Retry: outbox.Retry{BaseDelay: 9 * time.Hour}}, 3, 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.cfg.Logger = runtimetest.DiscardLogger()
			r, delay := failsAlways(t, yaml, c.cfg)
			require.Equal(t, "dead", r.Status)
			require.Equal(t, []int{c.attempts, c.attempts}, []int{r.Attempts, r.MaxAttempts}, "the limit is recorded with the event")
			require.LessOrEqual(t, delay, c.delay)
			require.Greater(t, delay, c.delay/2-5*time.Minute)
		})
	}
}

func TestConfiguredRetryOverridesThatOfAListener(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	yaml := outbox.Retry{MaxAttempts: 3, BaseDelay: 2 * time.Hour, MaxDelay: 2 * time.Hour}
	for _, park := range []bool{false, true} {
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.Failing("a1")
		cfg := listener.Config{Retry: outbox.Retry{MaxAttempts: 2, BaseDelay: 20 * time.Minute}}
		l := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: park, Retry: yaml}, cfg, h)
		runtimetest.PutAll(t, pool, "a1")
		require.Equal(t, queue.Report{Retried: 1}, runtimetest.DrainAll(t, l))
		delay := pgtest.Value[time.Duration](t, pool, "SELECT max(retry_after) - statement_timestamp() FROM "+runtimetest.TableOf(park))
		require.LessOrEqual(t, delay, 20*time.Minute)
		runtimetest.RetryNow(t, pool)
		require.Equal(t, queue.Report{Dead: 1}, runtimetest.DrainAll(t, l), "the second attempt is the last")
	}
}

func TestRetryDefaultsLastForHours(t *testing.T) {
	t.Parallel()
	require.Equal(t, outbox.Retry{MaxAttempts: 25, BaseDelay: time.Second, MaxDelay: 30 * time.Minute}, config.RetryWithDefaults(outbox.Retry{}))
	kept := outbox.Retry{MaxAttempts: 1, BaseDelay: time.Hour, MaxDelay: time.Minute}
	require.Equal(t, kept, config.RetryWithDefaults(kept))
}
