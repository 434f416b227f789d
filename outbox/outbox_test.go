package outbox_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestLogNeverHoldsPayloadOrHeaders: a delivery or a claim that somebody logs shows what identifies it alone.
func TestLogNeverHoldsPayloadOrHeaders(t *testing.T) {
	t.Parallel()
	event := outbox.Event{
		ID: uuid.New(), Namespace: "mini_chat", Topic: "turn_finalized", Attempt: 2,
		TenantID: outbox.Tenant(uuid.New()), Headers: map[string]string{"h": "secret-header"},
	}
	for _, value := range []any{
		outbox.Delivery[struct{ Text string }]{Event: event, Payload: struct{ Text string }{"secret-text"}},
		queue.Claimed{Event: event, Payload: []byte(`"secret-text"`)},
		event,
	} {
		var out bytes.Buffer
		slog.New(slog.NewJSONHandler(&out, nil)).Info("seen", "event", value)
		require.Contains(t, out.String(), event.ID.String())
		require.Contains(t, out.String(), event.TenantID.UUID.String())
		require.Contains(t, out.String(), `"topic":"turn_finalized"`)
		require.NotContains(t, out.String(), "secret")
	}
}
