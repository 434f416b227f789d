package check

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestMain(m *testing.M) { runtimetest.Main(m) }

// TestFailedEventIsRetried: an event whose handler fails is delivered by a later attempt.
func TestFailedEventIsRetried(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.JobTopic("mail")
	id := runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)[0]
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(),
		runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
			if d.Attempt == 1 {
				return errors.New("not yet")
			}
			return nil
		}))
	runtimetest.StartDispatcher(t, d)
	pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL)
	require.Equal(t, 2, runtimetest.StateOf(t, pool, id).Attempts)
}
