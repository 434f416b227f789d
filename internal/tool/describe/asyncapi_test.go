package describe_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/describe"
)

// TestAsyncAPINamesTheHeadersOfEachBroker: the attributes of an event have the prefix of the publisher, and a tombstone has no
// payload, but a header with it.
func TestAsyncAPINamesTheHeadersOfEachBroker(t *testing.T) {
	t.Parallel()
	text, err := describe.AsyncAPI(read(t, `namespaces:
  users:
    topics:
      mailed: {publish: {amqp: {address: /queues/mail}}, payload: {user_id: uuid}}
      streamed: {publish: {redis: {stream: users}}, payload: {user_id: uuid}}
      deleted: {partition_key: "{user_id}", publish: {kafka: {topic: users}, tombstone: true}, payload: {user_id: uuid}}
      pushed: {publish: {nats: {subject: users.pushed}}, payload: {user_id: uuid}}
      called: {publish: {webhook: {to: partner}}, payload: {user_id: uuid}}
      sent: {publish: {custom: {name: bus, destination: users}}, payload: {user_id: uuid}}
`), describe.AsyncAPIConfig{Version: "1.0.0", Encoding: describe.Binary})
	require.NoError(t, err)
	var doc struct {
		Components struct {
			Messages map[string]struct {
				Headers struct {
					Description string
					Properties  map[string]any
				}
				Payload map[string]any
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &doc))
	messages := doc.Components.Messages
	require.Equal(t, []string{"users.called.v1", "users.deleted.v1", "users.mailed.v1", "users.pushed.v1", "users.sent.v1", "users.streamed.v1"}, slices.Sorted(maps.Keys(messages)))
	headers := map[model.Broker][2]string{
		model.AMQP: {"users.mailed.v1", "cloudEvents:id"}, model.Redis: {"users.streamed.v1", "ce_id"},
		model.NATS: {"users.pushed.v1", "ce-id"}, model.Kafka: {"users.deleted.v1", "ce_id"},
		model.Webhook: {"users.called.v1", "webhook-id"},
	}
	for _, b := range model.Brokers() {
		require.Contains(t, headers, b, "the test needs a topic for each broker")
		require.Contains(t, messages[headers[b][0]].Headers.Properties, headers[b][1], "of %s", b)
	}

	require.Contains(t, messages["users.sent.v1"].Headers.Description, `The producer's own publisher "bus" may use other names.`)
	require.Empty(t, messages["users.pushed.v1"].Headers.Description)

	require.Contains(t, messages["users.deleted.v1"].Headers.Properties, "outbox-tombstone")
	require.Equal(t, map[string]any{"type": "null"}, messages["users.deleted.v1"].Payload)
	require.NotContains(t, messages["users.mailed.v1"].Headers.Properties, "outbox-tombstone")
	require.Contains(t, messages["users.mailed.v1"].Payload, "$ref")
}
