package runtimetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// failuresSQL lists the failures of the only event, after it was delivered.
const failuresSQL = `SELECT string_agg((f->>'attempt') || ' ' || split_part(f->>'error', E'\n', 1), '; ' ORDER BY n)
	FROM outbox.delivered AS d CROSS JOIN jsonb_array_elements(d.failures) WITH ORDINALITY AS x (f, n)
	WHERE f ? 'at' AND f ? 'worker'`

// TestFailuresStayWithTheEvent: the latest five failed attempts are kept, whatever their kind, also when the event was
// delivered since.
func TestFailuresStayWithTheEvent(t *testing.T) {
	t.Parallel()
	retry := outbox.Retry{MaxAttempts: 25, BaseDelay: time.Millisecond, MaxDelay: time.Millisecond}
	drain := func(t *testing.T, r runtimetest.Runner, delivered func() bool) {
		pgtest.Eventually(t, func() bool {
			_, err := r.Drain(t.Context())
			require.NoError(t, err)
			return delivered()
		})
	}
	t.Run("handler", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		topic := runtimetest.Altered(runtimetest.JobTopic("one"), func(s *outbox.TopicSpec) { s.Retry = retry })
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
		d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
			switch {
			case d.Attempt == 5:
				panic("boom")
			case d.Attempt < 8:
				return fmt.Errorf("no %d", d.Attempt)
			}
			return nil
		}))
		drain(t, d, func() bool { return pgtest.Count(t, pool, runtimetest.DeliveredSQL) == 1 })
		require.Equal(t, "3 no 3; 4 no 4; 5 handler panicked: boom; 6 no 6; 7 no 7", pgtest.Value[string](t, pool, failuresSQL))
	})
	t.Run("lease", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		topic := runtimetest.JobTopic("one")
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
		holder, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
		require.NoError(t, err)
		claimed, err := holder.Claim(t.Context(), queue.ClaimConfig{})
		require.NoError(t, err)
		require.Len(t, claimed, 1)
		pgtest.Execute(t, pool, "UPDATE outbox.queue SET locked_until = now() - interval '1 minute'")
		worker := pgtest.Value[string](t, pool, "SELECT locked_by::text FROM outbox.queue")
		drain(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)),
			func() bool { return pgtest.Count(t, pool, runtimetest.DeliveredSQL) == 1 })
		require.Equal(t, "1 lease ran out on attempt 1, worker "+worker+" did not answer", pgtest.Value[string](t, pool, failuresSQL))
	})
	t.Run("publisher", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		topic := runtimetest.Altered(quickTopic, func(s *outbox.TopicSpec) { s.Retry = retry })
		b := runtimetest.NewBroker()
		calls := 0
		b.Answer = func(publish.Outgoing) error {
			if calls++; calls <= 2 {
				return errors.New("record too large")
			}
			return nil
		}
		cfg := runtimetest.QuickConfig()
		cfg.Publishers = map[string]publish.Publisher{"kafka": b}
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := topic.Enqueue(t.Context(), tx, runtimetest.Said{Key: "k", N: 1})
			require.NoError(t, err)
		})
		drain(t, runtimetest.Dispatcher(t, pool, cfg, queue.Publish(topic, publish.Publication{Broker: "kafka", Destination: "x"})),
			func() bool { return pgtest.Count(t, pool, runtimetest.DeliveredSQL) == 1 })
		require.Equal(t, "1 record too large; 2 record too large", pgtest.Value[string](t, pool, failuresSQL))
	})
}
