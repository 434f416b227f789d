package queue

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// TestPausedDispatcherIsIdle: a dispatcher whose topics are all paused does not run in a loop.
func TestPausedDispatcherIsIdle(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := outbox.NewTopic[struct{}](outbox.TopicSpec{Namespace: "jobs", Name: "one"})
	handler := Handle(topic, t, func(context.Context, outbox.Delivery[struct{}]) error { return nil })
	d, err := NewDispatcher(pool, Config{PollInterval: 50 * time.Millisecond}, handler)
	require.NoError(t, err)
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (namespace, who) VALUES ('jobs', 'tester')")
	_, err = d.readPauses(t.Context())
	require.NoError(t, err)
	d.signals.paused = make(testsignal.Signal, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l, over := newLoop(ctx, d, d.machine), make(chan *core.End, 1)
	go func() { over <- l.loop() }()
	for range 20 {
		pgtest.Receive(t, d.signals.paused, "the pauses to be read")
	}
	cancel()
	require.Equal(t, &core.End{}, pgtest.Receive(t, over, "Run"))
	require.Less(t, l.steps, 1000)
}
