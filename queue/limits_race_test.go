package queue_test

import (
	"context"
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

// TestHolderReturnsWhileItIsReclaimed: a claim finds an event whose lease has run out, and before it locks the key the holder
// releases the event. The event takes a place of its own then, beside no other one of the key.
func TestHolderReturnsWhileItIsReclaimed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.LimitedJobs("limited", outbox.Limit{Per: "{secret}", Concurrency: 1})
	cfg := queue.ClaimConfig{Topics: []string{"limited"}, LeaseDuration: time.Second}
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.limits")
	require.NoError(t, stop())

	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "one"}, runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "one"})
	holder, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	held, err := holder.Claim(t.Context(), cfg)
	require.NoError(t, err)
	require.Len(t, held, 1)
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE locked_until IS NOT NULL")

	// Another claim of a key that nobody has used yet makes the claim wait between its look and its locks.
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "two"})
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err = tx.Exec(t.Context(), "INSERT INTO outbox.limit_usage (namespace, topic, per, key) VALUES ('jobs', 'limited', '{secret}', 'two')")
	require.NoError(t, err)
	other, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	claimed := make(chan error, 1)
	go func() {
		_, err := other.Claim(context.Background(), cfg)
		claimed <- err
	}()
	pgtest.AwaitBlocked(t, pool, 1)
	_, err = holder.Release(t.Context(), held...)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, pgtest.Receive(t, claimed, "the claim"))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.queue WHERE locked_until > now() AND turn LIKE '%/one'"))
}

// TestLateEventsAtARateHoldUpNoOther: events whose lease ran out and whose key is at its rate do not keep claims from an event of
// another key whose lease ran out.
func TestLateEventsAtARateHoldUpNoOther(t *testing.T) {
	t.Parallel()
	const rate = 6 // more than a claim reclaims
	pool := pgtest.Database(t)
	topic := runtimetest.LimitedJobs("limited", outbox.Limit{Per: "{secret}", Rate: outbox.Rate{Events: rate, Period: time.Hour}})
	start := func() func() error {
		return runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)))
	}
	stop := start()
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.limits")
	require.NoError(t, stop())
	for range rate {
		runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "a"})
	}
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.UUID{1}, Secret: "z"})
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "jobs"})
	require.NoError(t, err)
	claimed, err := s.Claim(t.Context(), queue.ClaimConfig{Topics: []string{"limited"}, LeaseDuration: time.Second})
	require.NoError(t, err)
	require.Len(t, claimed, rate+1)
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET locked_until = now() - interval '1 s' WHERE locked_until IS NOT NULL")
	stop = start()
	pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL)
	require.NoError(t, stop())
}
