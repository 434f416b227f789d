package queue

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestSpin(t *testing.T) {
	pool := pgtest.Database(t)
	topic := outbox.NewTopic[map[string]int](outbox.TopicSpec{Namespace: "jobs", Name: "one"})
	d, err := NewDispatcher(pool, Config{}, Handle(topic, t, func(context.Context, outbox.Delivery[map[string]int]) error { return nil }))
	require.NoError(t, err)
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (namespace, who) VALUES ('jobs', 'me')")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = d.readPauses(ctx)
	require.NoError(t, err)
	l := newLoop(ctx, d)
	require.NoError(t, l.run())
	t.Logf("turn %d passes %d", l.claims.ahead.turn, l.sent)
}
