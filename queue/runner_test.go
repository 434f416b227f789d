package queue_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestRunnerOfHandler: the context of a handler says which dispatcher it runs for, with Run and with Drain.
func TestRunnerOfHandler(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	type ping struct{}
	topic := outbox.NewTopic[ping](outbox.TopicSpec{Namespace: "jobs", Name: "ping"})
	for name, run := range map[string]func(*queue.Dispatcher, context.Context) error{
		"run":   (*queue.Dispatcher).Run,
		"drain": func(d *queue.Dispatcher, ctx context.Context) error { _, err := d.Drain(ctx); return err },
	} {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := topic.Enqueue(t.Context(), tx, ping{})
			return err
		}))
		ctx, cancel := context.WithCancel(t.Context())
		var got outbox.Runner
		worker := uuid.New()
		d, err := queue.NewDispatcher(pool, queue.Config{WorkerID: worker}, queue.Handle(topic, t, func(ctx context.Context, _ outbox.Delivery[ping]) error {
			got, _ = outbox.RunnerFromContext(ctx)
			if name == "run" {
				cancel()
			}
			return nil
		}))
		require.NoError(t, err)
		require.NoError(t, run(d, ctx), name)
		cancel()
		require.Equal(t, outbox.Runner{Namespace: "jobs", WorkerID: worker}, got, name)
	}
	_, ok := outbox.RunnerFromContext(t.Context())
	require.False(t, ok)
}
