package listener_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// publisherFunc is a publisher of one function.
type publisherFunc func(ctx context.Context, events []publish.Outgoing) []error

// Publish implements publish.Publisher.
func (f publisherFunc) Publish(ctx context.Context, events []publish.Outgoing) []error {
	return f(ctx, events)
}

// TestPublisherAsksForTheLease: a call of a publisher can ask whether its listener still has the lease of the shard. When
// another process has taken the shard since, it has not, although this process has not noticed.
func TestPublisherAsksForTheLease(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := benchLogTopic.Untyped().EnqueueMany(t.Context(), tx, []benchPayload{{N: 1}})
		require.NoError(t, err)
	})
	calls := 0
	p := publisherFunc(func(ctx context.Context, events []publish.Outgoing) []error {
		calls++
		lane, ok := publish.LaneOf(ctx)
		require.True(t, ok)
		require.Equal(t, "outbox/relay/0", lane.Name)
		require.NoError(t, lane.Held(ctx))
		if calls == 1 {
			pgtest.Execute(t, pool, "UPDATE outbox.listeners SET lease_no = lease_no + 1, lease_by = gen_random_uuid() WHERE listener = 'relay'")
			require.ErrorIs(t, lane.Held(ctx), outbox.ErrLeaseLost)
			pgtest.Execute(t, pool, "UPDATE outbox.listeners SET running = false, lease_until = NULL, lease_by = NULL WHERE listener = 'relay'")
		}
		return make([]error, len(events))
	})
	l, err := listener.New(pool, listener.Spec{Name: "relay"}, listener.Config{
		Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": p},
	}, listener.Publish(benchLogTopic, publish.Publication{Broker: "kafka", Destination: "said"}))
	require.NoError(t, err)
	for range 2 {
		_, err = l.Drain(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, 2, calls, "the event is sent again, because the first lease was lost")

	_, ok := publish.LaneOf(t.Context())
	require.False(t, ok)
}
