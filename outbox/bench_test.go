package outbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// BenchmarkEnqueue enqueues in one transaction, which is rolled back, so that it measures statements and no commits.
func BenchmarkEnqueue(b *testing.B) {
	topic, jobs := runtimetest.JobTopic("bench").Untyped(), runtimetest.NumberedJobs(100)
	pool := pgtest.Database(b)
	b.Run("one", func(b *testing.B) {
		tx, err := pool.Begin(b.Context())
		require.NoError(b, err)
		defer func() { _ = tx.Rollback(b.Context()) }()
		b.ReportAllocs()
		for b.Loop() {
			_, err := topic.Enqueue(b.Context(), tx, &jobs[0])
			require.NoError(b, err)
		}
	})
	b.Run("many", func(b *testing.B) {
		tx, err := pool.Begin(b.Context())
		require.NoError(b, err)
		defer func() { _ = tx.Rollback(b.Context()) }()
		b.ReportAllocs()
		for b.Loop() {
			_, err := topic.EnqueueMany(b.Context(), tx, jobs)
			require.NoError(b, err)
		}
	})
}
