package amqp

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// TestDefaultEncoding: messages that are made without an encoder are those of the encoder that the documentation names.
func TestDefaultEncoding(t *testing.T) {
	t.Parallel()
	tenant := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	var direct encoding
	named := encoding{encoder: publish.CloudEvents("", publish.Binary)}
	for _, e := range []outbox.Event{
		{ID: uuid.New(), Namespace: "users", Topic: "user_renamed"},
		{
			ID: uuid.New(), Namespace: "users", Topic: "user_renamed", Version: 2, TenantID: tenant,
			DedupeKey: "k", PartitionKey: "p", Entity: outbox.Entity{Type: "user", ID: "17", Version: 3}, CreatedAt: time.Now(),
			Headers: map[string]string{
				"traceparent": "00-a-b-01", "tracestate": "x=1", "x-reason": "maßvoll", outbox.CausationHeader: "c\x00",
				outbox.CorrelationHeader: uuid.NewString(), "cloudEvents:id": "forged", "CC": "elsewhere",
			},
		},
		{ID: uuid.New(), Namespace: "orders", Topic: "paid", TenantID: tenant},
	} {
		o := publish.Outgoing{Event: e, Payload: json.RawMessage(`{"n":1}`), Destination: "/queues/q", Key: "k"}
		want, wantErr := named.message(&o)
		got, err := direct.message(&o)
		require.Equal(t, wantErr, err)
		require.Equal(t, want, got)
	}
}
