package runtimetest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

// BenchmarkDrain claims, handles and acks 2,000 events without an observer: its allocations are those of this path.
func BenchmarkDrain(b *testing.B) {
	pool := pgtest.Database(b)
	topic := runtimetest.JobTopic("one")
	d := runtimetest.Dispatcher(b, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed))
	const events = 2000
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		runtimetest.EnqueueJobs(b, pool, topic, runtimetest.NumberedJobs(events)...)
		b.StartTimer()
		r, err := d.Drain(b.Context())
		require.NoError(b, err)
		require.Equal(b, events, r.Delivered)
	}
}
