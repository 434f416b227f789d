package queue_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestLimitIsNotBlockedByLostLeases: the leases of a killed process fill a limit, and more events than a claim looks at are
// due before those of these leases, because they were committed late. When the leases have run out, claims take their events
// again, and then the others.
func TestLimitIsNotBlockedByLostLeases(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.LimitedJobs("limited", outbox.Limit{Per: outbox.PerTenant, Concurrency: 2})
	d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed))
	require.NoError(t, queue.Declare(t.Context(), d))
	store, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	jobs := runtimetest.NumberedJobs(700)
	for i := range jobs {
		jobs[i].TenantID = uuid.UUID{1}
	}
	runtimetest.EnqueueJobs(t, pool, topic, jobs[:2]...)
	cfg := queue.ClaimConfig{BatchSize: 10, Topics: []string{"limited"}, LeaseDuration: time.Minute}
	killed, err := store.Claim(t.Context(), cfg)
	require.NoError(t, err)
	require.Len(t, killed, 2)
	runtimetest.EnqueueJobs(t, pool, topic, jobs[2:]...)
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET next_attempt_at = next_attempt_at - interval '1 hour' WHERE locked_until IS NULL")
	claimed, err := store.Claim(t.Context(), cfg)
	require.NoError(t, err)
	require.Empty(t, claimed)
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET locked_until = locked_until - interval '1 hour' WHERE locked_until IS NOT NULL")
	claimed, err = store.Claim(t.Context(), cfg)
	require.NoError(t, err)
	require.Len(t, claimed, 2, "the limit stays full for ever")
	require.True(t, claimed[0].Reclaimed && claimed[1].Reclaimed)
	_, err = store.Ack(t.Context(), claimed...)
	require.NoError(t, err)
	claimed, err = store.Claim(t.Context(), cfg)
	require.NoError(t, err)
	require.Len(t, claimed, 2)
}
