package listener_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
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

// TestPublisherLearnsEarlierLanes: a call of a publisher can ask which lanes the listener had with other numbers of shards. Each
// shard knows all of them, also one that was added later. When the number has changed, the lease is lost.
func TestPublisherLearnsEarlierLanes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := outbox.NewTopic[benchPayload](outbox.TopicSpec{Namespace: "bench", Name: "spread", Version: 1, Log: true, Keys: func(v any) outbox.Keys {
		return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("n", strconv.FormatInt(v.(*benchPayload).N, 10)))}
	}})
	two, one, three := []string{"outbox/relay/0-of-2", "outbox/relay/1-of-2"}, []string{"outbox/relay/0-of-1"}, []string{"outbox/relay/0-of-3", "outbox/relay/1-of-3", "outbox/relay/2-of-3"}
	var lost publish.Lane
	for _, step := range []struct {
		shards  int
		earlier []string
	}{{2, nil}, {1, two}, {3, slices.Concat(one, two)}, {2, slices.Concat(one, three)}, {3, slices.Concat(one, two)}} {
		var mu sync.Mutex
		lanes, earlier, errs := make(map[string]publish.Lane), make(map[string][]string), []error(nil)
		l, err := listener.New(pool, listener.Spec{Name: "relay", Shards: step.shards}, listener.Config{
			Logger: runtimetest.DiscardLogger(), Publishers: map[string]publish.Publisher{"kafka": publisherFunc(func(ctx context.Context, events []publish.Outgoing) []error {
				lane, _ := publish.LaneOf(ctx)
				names, err := lane.Earlier(ctx)
				mu.Lock()
				defer mu.Unlock()
				lanes[lane.Name], earlier[lane.Name], errs = lane, names, append(errs, err)
				return make([]error, len(events))
			})},
		}, listener.Publish(topic, publish.Publication{Broker: "kafka", Destination: "said"}))
		require.NoError(t, err)
		_, err = l.Drain(t.Context()) // changes the number
		require.NoError(t, err)
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			var events []benchPayload
			for n := range 40 {
				events = append(events, benchPayload{N: int64(n)})
			}
			_, err := topic.EnqueueMany(t.Context(), tx, events)
			require.NoError(t, err)
		})
		_, err = l.Drain(t.Context())
		require.NoError(t, err)
		require.NoError(t, errors.Join(errs...))
		require.Len(t, lanes, step.shards)
		for name, names := range earlier {
			require.ElementsMatch(t, step.earlier, names, name)
		}
		if lost.Earlier != nil {
			_, err := lost.Earlier(t.Context())
			require.ErrorIs(t, err, outbox.ErrLeaseLost)
		}
		lost = lanes[fmt.Sprintf("outbox/relay/0-of-%d", step.shards)]
	}
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(DISTINCT past_shards) FROM outbox.listeners WHERE cardinality(past_shards) = 3"))
}

// TestPublisherAsksForTheLease: a call of a publisher can ask whether its listener still has the lease of the shard. When
// another process has taken the shard since, it has not, although this process has not noticed.
func TestPublisherAsksForTheLease(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.InTx(t, pool, func(tx pgx.Tx) {
		_, err := benchLogTopic.EnqueueMany(t.Context(), tx, []benchPayload{{N: 1}})
		require.NoError(t, err)
	})
	calls := 0
	p := publisherFunc(func(ctx context.Context, events []publish.Outgoing) []error {
		calls++
		lane, ok := publish.LaneOf(ctx)
		require.True(t, ok)
		require.Equal(t, "outbox/relay/0-of-1", lane.Name)
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
