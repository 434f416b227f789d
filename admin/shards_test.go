package admin_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
)

func TestSumShards(t *testing.T) {
	t.Parallel()
	one, two := admin.TopicVersion{Topic: "threads/posted", Version: 1}, admin.TopicVersion{Topic: "threads/posted", Version: 2}
	shards := []admin.ListenerStatus{
		{Listener: "ears", Shard: 0, State: admin.ListenerIdle, Unread: 1, ParkedKeys: 2, ParkedEvents: 3, DeadLetters: 4, Lag: time.Minute, UnhandledVersions: []admin.TopicVersion{one}},
		{Listener: "ears", Shard: 1, State: admin.ListenerBlocked, Unread: 10, ParkedKeys: 20, ParkedEvents: 30, DeadLetters: 40, LastError: "no", UnhandledVersions: []admin.TopicVersion{two, one}},
		{Listener: "eyes", State: admin.ListenerRunning, Unread: 5},
		{Listener: "ears", Shard: 2, State: admin.ListenerRunning, Unread: 100},
		{Listener: "deaf", State: admin.ListenerWaiting},
	}
	before := slices.Clone(shards)
	require.Equal(t, []admin.ListenerStatus{
		{Listener: "deaf", State: admin.ListenerWaiting},
		{Listener: "ears", Shard: 1, State: admin.ListenerBlocked, Unread: 111, ParkedKeys: 22, ParkedEvents: 33, DeadLetters: 44, LastError: "no", Lag: time.Minute, UnhandledVersions: []admin.TopicVersion{one, two}},
		{Listener: "eyes", State: admin.ListenerRunning, Unread: 5},
	}, admin.SumShards(shards))
	require.Equal(t, before, shards)
	require.Empty(t, admin.SumShards(nil))
}
