package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestTopicWithoutVersion: a topic written by hand, without a version, is version 1 for who enqueues and for who handles,
// publishes or listens.
func TestTopicWithoutVersion(t *testing.T) {
	t.Parallel()
	unset := func(s *outbox.TopicSpec) { s.Version = 0 }
	queued, published, logged := altered(jobTopic("plain"), unset), altered(publishedTopic, unset), altered(saidTopic, unset)

	t.Run("handler", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		got := make(chan int, 1)
		stop := start(t, dispatcher(t, pool, quick(), onJob(queued, func(_ context.Context, d outbox.Delivery[job]) error {
			got <- d.Version
			return nil
		})))
		enqueueJobs(t, pool, queued, numbered(1)...)
		settles(t, pool, 1, delivered)
		require.Equal(t, 1, receive(t, got, "the event"))
		require.NoError(t, stop())
	})
	t.Run("publisher", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		headers := func(any) map[string]string { return map[string]string{"a": "b"} } // has the payload decoded
		d, err := outbox.NewDispatcher(pool, outbox.DispatcherConfig{Logger: quiet(), Publishers: map[string]outbox.Publisher{"kafka": newBroker()}},
			outbox.Publish(published, outbox.Publication{Broker: "kafka", Destination: "sc.test", Headers: headers}))
		require.NoError(t, err)
		inTx(t, pool, func(tx pgx.Tx) {
			_, err := published.Untyped().Enqueue(t.Context(), tx, said{Key: "a"})
			require.NoError(t, err)
		})
		report, err := d.Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, outbox.DrainReport{Delivered: 1}, report)
	})
	t.Run("listener", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		h := newNotes()
		l, err := outbox.NewListener(pool, outbox.ListenerSpec{Name: "ears"}, outbox.ListenerConfig{Logger: quiet()},
			outbox.Listen(logged, h, h.handle))
		require.NoError(t, err)
		stop := startListener(t, l)
		inTx(t, pool, func(tx pgx.Tx) {
			_, err := logged.Untyped().Enqueue(t.Context(), tx, said{Key: "a", N: 1})
			require.NoError(t, err)
		})
		h.await(t, 1)
		stop()
	})
	t.Run("newer event", func(t *testing.T) {
		t.Parallel()
		pool := pgtest.Database(t)
		newer := queued
		newer = altered(newer, func(s *outbox.TopicSpec) { s.Version = 2 })
		enqueueJobs(t, pool, newer, numbered(1)...)
		d := dispatcher(t, pool, quick(), onJob(queued, func(context.Context, outbox.Delivery[job]) error { return nil }))
		report, err := d.Drain(t.Context())
		require.NoError(t, err)
		require.NotZero(t, report.Retried)
		require.Equal(t, "payload has version 2, this process knows 1", value[string](t, pool, "SELECT last_error FROM outbox.events"))
	})
}
