package describe_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

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
	require.Equal(t, []string{"users.deleted.v1", "users.mailed.v1", "users.pushed.v1", "users.sent.v1", "users.streamed.v1"}, slices.Sorted(maps.Keys(messages)))
	require.Contains(t, messages["users.mailed.v1"].Headers.Properties, "cloudEvents:id")
	require.Contains(t, messages["users.streamed.v1"].Headers.Properties, "ce_id")
	require.Contains(t, messages["users.pushed.v1"].Headers.Properties, "ce-id")
	require.Contains(t, messages["users.deleted.v1"].Headers.Properties, "ce_id")

	require.Contains(t, messages["users.sent.v1"].Headers.Description, `The producer's own publisher "bus" may use other names.`)
	require.Empty(t, messages["users.pushed.v1"].Headers.Description)

	require.Contains(t, messages["users.deleted.v1"].Headers.Properties, "outbox-tombstone")
	require.Equal(t, map[string]any{"type": "null"}, messages["users.deleted.v1"].Payload)
	require.NotContains(t, messages["users.mailed.v1"].Headers.Properties, "outbox-tombstone")
	require.Contains(t, messages["users.mailed.v1"].Payload, "$ref")
}
