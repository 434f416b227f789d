package runtimetest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// TestTopicWithoutVersion: a topic written by hand, without a version, has version 1 for enqueues, handlers, publishers
// and listeners.
func TestTopicWithoutVersion(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	unset := func(s *outbox.TopicSpec) { s.Version = 0 }
	queued, published, logged := runtimetest.Altered(runtimetest.JobTopic("plain"), unset), runtimetest.Altered(runtimetest.PublishedTopic, unset), runtimetest.Altered(runtimetest.SaidTopic, unset)

	t.Run("handler", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		got := make(chan int, 1)
		stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(queued, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
			got <- d.Version
			return nil
		})))
		runtimetest.EnqueueJobs(t, pool, queued, runtimetest.NumberedJobs(1)...)
		pgtest.Settles(t, pool, 1, runtimetest.DeliveredSQL)
		require.Equal(t, 1, pgtest.Receive(t, got, "the event"))
		require.NoError(t, stop())
	})
	t.Run("publisher", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		headers := func(any) map[string]string { return map[string]string{"a": "b"} } // makes the runtime decode the payload
		d, err := queue.NewDispatcher(pool, queue.Config{Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": runtimetest.NewBroker()}},
			queue.Publish(published, publish.Publication{Broker: "kafka", Destination: "sc.test", Headers: headers}))
		require.NoError(t, err)
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := published.Enqueue(t.Context(), tx, runtimetest.Said{Key: "a"})
			require.NoError(t, err)
		})
		report, err := d.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, queue.Report{Delivered: 1}, report)
	})
	t.Run("listener", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		h := runtimetest.NewNotes()
		l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger()},
			listener.Handle(logged, h, h.Handle))
		require.NoError(t, err)
		stop := runtimetest.StartListener(t, l)
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := logged.Enqueue(t.Context(), tx, runtimetest.Said{Key: "a", N: 1})
			require.NoError(t, err)
		})
		h.Await(t, 1)
		stop()
	})
	t.Run("newer event", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		newer := queued
		newer = runtimetest.Altered(newer, func(s *outbox.TopicSpec) { s.Version = 2 })
		runtimetest.EnqueueJobs(t, pool, newer, runtimetest.NumberedJobs(1)...)
		d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(queued, func(context.Context, outbox.Delivery[runtimetest.Job]) error { return nil }))
		report, err := d.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, queue.Report{}, report)
		require.Equal(t, 1, pgtest.Count(t, pool, runtimetest.UntouchedSQL))
	})
}
