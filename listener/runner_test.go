package listener_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestRunnerOfHandler: the context of a handler says which listener it runs for, with Run and with Drain.
func TestRunnerOfHandler(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	type ping struct{}
	topic := outbox.NewTopic[ping](outbox.TopicSpec{Namespace: "jobs", Name: "ping", Log: true})
	for name, run := range map[string]func(*listener.Listener, context.Context) error{
		"run":   (*listener.Listener).Run,
		"drain": func(l *listener.Listener, ctx context.Context) error { _, err := l.Drain(ctx); return err },
	} {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := topic.Enqueue(t.Context(), tx, ping{})
			return err
		}))
		ctx, cancel := context.WithCancel(t.Context())
		var got outbox.Runner
		worker := uuid.New()
		l, err := listener.New(pool, listener.Spec{Name: name}, listener.Config{WorkerID: worker}, listener.Handle(topic, t, func(ctx context.Context, _ outbox.Delivery[ping]) error {
			got, _ = outbox.RunnerFromContext(ctx)
			if name == "run" {
				cancel()
			}
			return nil
		}))
		require.NoError(t, err)
		require.NoError(t, run(l, ctx), name)
		cancel()
		require.Equal(t, outbox.Runner{Listener: name, WorkerID: worker}, got, name)
	}
	_, ok := outbox.RunnerFromContext(t.Context())
	require.False(t, ok)
}
