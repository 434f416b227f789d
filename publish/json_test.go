package publish_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

func TestJSONPutsTheFactsIntoHeaders(t *testing.T) {
	t.Parallel()
	o := full()
	o.Headers["Outbox-Id"] = "forged"
	m, err := publish.JSON()(o)
	require.NoError(t, err)
	require.Equal(t, publish.Message{
		ContentType: "application/json",
		Headers: map[string]string{
			"outbox-id": eventID.String(), "outbox-type": "users.user_renamed", "outbox-version": "3",
			"outbox-time": "2026-11-21T12:14:15.123456Z", "outbox-tenant-id": tenantID.String(),
			"outbox-entity-type": "user", "outbox-entity-id": "17", "outbox-entity-version": "9007199254740993",
			"outbox-partition-key": "user/17", "outbox-dedupe-key": tenantID.String() + "/17",
			"traceparent": o.Headers["traceparent"], "tracestate": "a=b", "reason": "marriage",
			"outbox-causation-id": causeID, "outbox-correlation-id": "request 7 (ü)",
		},
		Body: o.Payload,
	}, m)
	require.Len(t, o.Headers, 6, "the event's own headers are untouched")
}

func TestJSONLeavesOutMissingFacts(t *testing.T) {
	t.Parallel()
	o := publish.Outgoing{Event: outbox.Event{
		ID: eventID, Namespace: "users", Topic: "user_renamed", Headers: map[string]string{"outbox-tenant-id": "forged"},
	}}
	m, err := publish.JSON()(o)
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"outbox-id": eventID.String(), "outbox-type": "users.user_renamed", "outbox-version": "1",
	}, m.Headers)
}

func TestEncodeFallsBackAndSurvives(t *testing.T) {
	t.Parallel()
	m, err := publish.Encoder(nil).Encode(full())
	require.NoError(t, err)
	require.Equal(t, "/users", m.Attributes["source"])

	_, err = publish.Encoder(func(o publish.Outgoing) (publish.Message, error) { panic(string(o.Payload)) }).Encode(full())
	require.ErrorContains(t, err, "encoder panicked (string)")
	require.ErrorContains(t, err, "json_test.go", "the stack tells where")
	require.NotContains(t, err.Error(), "Zoë")
	require.False(t, outbox.IsPermanent(err))
	require.False(t, outbox.IsUnavailable(err))
}

// TestWireNameIsTheType: every encoder names a topic by its wire name, if it has one.
func TestWireNameIsTheType(t *testing.T) {
	t.Parallel()
	o := publish.Outgoing{Event: outbox.Event{Namespace: "users", Topic: "user_created"}, Payload: json.RawMessage(`{}`)}
	for wire, want := range map[string]string{"": "users.user_created", "user:created": "user:created"} {
		o.WireName = wire
		require.Equal(t, want, o.Type())
		m, err := publish.JSON()(o)
		require.NoError(t, err)
		require.Equal(t, want, m.Headers["outbox-type"])
		m, err = publish.Encoder(nil).Encode(o)
		require.NoError(t, err)
		require.Equal(t, want, m.Attributes["type"])
		m, err = publish.CloudEvents("", publish.Structured)(o)
		require.NoError(t, err)
		require.Contains(t, string(m.Body), `"type":"`+want+`"`)
	}
}
