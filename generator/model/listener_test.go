package model_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
)

func TestListenersAndTheirTopics(t *testing.T) {
	t.Parallel()
	m := load(t, head+`defaults: {lease: 45s, retry: {max_attempts: 17}}
namespaces:
  threads:
    topics:
      created: {delivery: log, payload: {id: uuid}}
      archived: {delivery: log, listeners: none, payload: {id: uuid}}
      sent: {payload: {id: uuid}}
listeners:
  broadcast:
    doc: pushes
    go: Push
    topics: [threads/created]
    mode: leased
    start: latest
    on_failure: park_key
    concurrency: 1000
    shards: 64
    lease: 1s
    max_lag: 1s
    retry: {base_delay: 2s}
  companion: {topics: [threads/created], mode: transactional}
`)
	created, archived, sent := m.Namespaces[0].Topics[0], m.Namespaces[0].Topics[1], m.Namespaces[0].Topics[2]
	require.Equal(t, []*model.Topic{sent}, m.Namespaces[0].QueueTopics())
	require.Equal(t, []*model.Listener{
		{
			Name: "broadcast", GoName: "Push", Doc: "pushes", Stubs: true, Topics: []*model.Topic{created},
			Latest: true, ParkKeys: true, Concurrency: 1000, Shards: 64, Lease: time.Second, MaxLag: time.Second,
			Retry: model.Retry{MaxAttempts: 17, BaseDelay: 2 * time.Second, MaxDelay: 30 * time.Minute},
		},
		{
			Name: "companion", GoName: "Companion", Stubs: true, Topics: []*model.Topic{created},
			Transactional: true, Concurrency: 1, Shards: 1, Lease: 45 * time.Second,
			Retry: model.Retry{MaxAttempts: 17, BaseDelay: time.Second, MaxDelay: 30 * time.Minute},
		},
	}, m.Listeners)
	require.Equal(t, m.Listeners, created.Listeners)
	require.Empty(t, archived.Listeners)
}

// Listeners retry the events of a log topic, so no rule applies to the retries of the topic itself.
func TestLogTopicIsKeptForTheRetriesOfItsListeners(t *testing.T) {
	t.Parallel()
	source := func(topic, listener string) string {
		return head + "namespaces: {a: {topics: {b: {delivery: log, " + topic + "payload: {}}}}}\nlisteners: {c: {" + listener + "topics: [a/b]}}\n"
	}
	const patient = "retry: {max_attempts: 13, base_delay: 1m, max_delay: 1m}, " // its horizon is 12m
	for _, fine := range []string{
		source("retry: {max_attempts: 1000}, ", ""),
		source("retention: {delivered: 7h4m8s}, ", ""),
		source("retention: {delivered: 12m1s}, ", patient),
	} {
		load(t, fine)
	}
	for _, short := range []string{
		source("retention: {delivered: 7h4m7s}, ", ""),
		source("retention: {delivered: 12m}, retry: {max_attempts: 1}, ", patient),
		source("", "retry: {max_attempts: 1000, max_delay: 1h}, "),
		source("retention: {delivered: 0s}, ", ""),
	} {
		_, findings := model.Load([]byte(short), "outbox.yaml")
		require.Len(t, findings, 1, short)
		require.ErrorContains(t, findings, "[retention-bounds]")
	}
}
