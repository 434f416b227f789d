package queue_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestDispatcherPausesBetweenEmptyClaims: the same of a dispatcher.
func TestDispatcherPausesBetweenEmptyClaims(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, wake := range []outbox.Wake{outbox.WakeDoorbell, outbox.WakePoll} {
		t.Run(string(wake), func(t *testing.T) {
			t.Parallel()
			const look = 50 * time.Millisecond
			pool := pgtest.Database(t)
			watched, claims := runtimetest.NewGate(t, pool, "name: EventClaim")
			ended := runtimetest.SlowChecks(claims, look)
			cfg := queue.Config{PollInterval: runtimetest.Rarely, MaxPollInterval: runtimetest.Rarely, LeaseDuration: 3 * runtimetest.Rarely, Wake: wake, Logger: runtimetest.DiscardLogger()}
			if wake == outbox.WakePoll {
				cfg.PollInterval, cfg.MaxPollInterval = time.Millisecond, time.Millisecond
			}
			topic := runtimetest.JobTopic("one")
			tx := pgtest.Begin(t, pool, pgx.TxOptions{})
			_, err := topic.Enqueue(t.Context(), tx, runtimetest.Job{TenantID: uuid.New(), N: 1})
			require.NoError(t, err)
			d := runtimetest.Dispatcher(t, watched, cfg, runtimetest.OnJob(topic, runtimetest.Succeed))
			watch := queue.Watch(d)
			runtimetest.StartDispatcher(t, d)
			runtimetest.Restful(t, runtimetest.IfDoorbell(wake, watch.Refused), ended, look)
		})
	}
}
