package tenantlane_test

import (
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/postgres/tenantlane"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestLanesDoNotChange: the lane of an event is stored with it, and orders it. A process that computes another lane for a
// topic would deliver its new events before those that are queued already.
func TestLanesDoNotChange(t *testing.T) {
	t.Parallel()
	require.Equal(t, 32, tenantlane.Count)
	tenant := func(id string) uuid.NullUUID { return uuid.NullUUID{UUID: uuid.MustParse(id), Valid: true} }
	const some, zero = "6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab", "00000000-0000-0000-0000-000000000000"
	for _, c := range []struct {
		topic  string
		tenant uuid.NullUUID
		want   int16
	}{
		{"", uuid.NullUUID{}, 3},
		{"a", uuid.NullUUID{}, 10},
		{"turn_finalized", uuid.NullUUID{}, 3},
		{"order_placed", uuid.NullUUID{}, 8},
		{"turn_finalized", tenant(some), 9},
		{"order_placed", tenant(some), 16},
		{"order_placed", tenant("6F1F4B0E-3C8A-4A57-9D2E-0F6B7C8D9EAB"), 16},
		{"order_placed", tenant(zero), 11},
	} {
		require.Equal(t, c.want, tenantlane.Of(c.topic, c.tenant), "%s %v", c.topic, c.tenant)
	}
}

// TestLaneEqualsSQL: events that outbox.enqueue writes are in the same lanes as those of Go.
func TestLaneEqualsSQL(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	var topics []string
	var tenants []uuid.NullUUID
	var want []int16
	seen := make(map[int16]bool)
	for n := range 2000 {
		topic, tenant := "topic_"+strconv.Itoa(n), uuid.NullUUID{}
		if n%2 == 0 {
			topic, tenant = "topic_"+strconv.Itoa(n%10), uuid.NullUUID{UUID: uuid.New(), Valid: true}
		}
		topics, tenants = append(topics, topic), append(tenants, tenant)
		want = append(want, tenantlane.Of(topic, tenant))
		seen[want[n]] = true
	}
	require.Len(t, seen, tenantlane.Count)
	require.Equal(t, want, pgtest.Value[[]int16](t, pool,
		"SELECT array_agg(outbox.lane(u.topic, u.tenant) ORDER BY u.n) FROM unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS u (topic, tenant, n)", topics, tenants))
	require.Equal(t, tenantlane.Of("topic", uuid.NullUUID{}), pgtest.Value[int16](t, pool, "SELECT outbox.lane('topic')"))
	require.Contains(t, pgtest.Value[string](t, pool,
		"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'queue_lane_check'"), "lane < "+strconv.Itoa(tenantlane.Count))
}
