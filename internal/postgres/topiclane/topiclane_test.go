package topiclane_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestLanesDoNotChange: the lane of an event is stored with it. A process that computes another lane for a topic would
// not find the events that are queued already.
func TestLanesDoNotChange(t *testing.T) {
	t.Parallel()
	for topic, want := range map[string]int32{
		"": 598787138, "a": 177701138, "turn_finalized": 598101231, "order_placed": 148674252,
	} {
		require.Equal(t, want, topiclane.Of(topic), topic)
	}
}

// TestLaneEqualsSQL: events that outbox.enqueue writes are in the same lanes as those of Go, and the column takes them.
func TestLaneEqualsSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	var topics []string
	var want []int32
	seen := make(map[int32]bool)
	for n := range 2000 {
		topics = append(topics, "topic_"+strconv.Itoa(n))
		want = append(want, topiclane.Of(topics[n]))
		seen[want[n]] = true
		require.GreaterOrEqual(t, want[n], int32(0))
		require.Less(t, want[n], int32(1<<30))
	}
	require.Len(t, seen, len(topics), "each has a lane of its own")
	require.Equal(t, want, pgtest.Value[[]int32](t, pool,
		"SELECT array_agg(outbox.lane(u.topic) ORDER BY u.n) FROM unnest($1::text[]) WITH ORDINALITY AS u (topic, n)", topics))
	pgtest.Execute(t, pool, `INSERT INTO outbox.queue (id, namespace, topic, lane)
		SELECT gen_random_uuid(), 'test', u.topic, outbox.lane(u.topic) FROM unnest($1::text[]) AS u (topic)`, topics)
}
