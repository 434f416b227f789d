// Package consume is the runtime behind the consumer packages that outboxgen generates: it reads a message of a
// broker, whatever the envelope, decodes its payload by topic and version and checks its structure, and has it handled once, with
// package inbox, in the consumer's transaction. It knows nothing of the producer's side and of any broker's client.
//
// The generated NewUsersConsumer is the usual way in; Parse and Topic.Decode are what stands behind it.
package consume

import (
	"encoding/json"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// IsAtLeastVersion0_1_0 is referred to by generated code, so that code from a newer generator does not compile against
// an older runtime.
const IsAtLeastVersion0_1_0 = true

// Event is what a message tells of an event beside its payload. What the event does not have is zero.
type Event struct {
	ID uuid.UUID
	// Source names who emitted the event, in CloudEvents.
	Source           string
	Namespace, Topic string
	// Version is the schema number of the payload.
	Version  int
	TenantID uuid.NullUUID
	Entity   Entity
	// PartitionKey is the key that keeps events in order at the producer, and at the broker unless the YAML names
	// another.
	PartitionKey string
	DedupeKey    string
	// Time of the enqueue.
	Time time.Time
	// Headers of the event, traceparent and tracestate among them, and whatever else the broker delivered.
	Headers map[string]string
}

// Entity is a versioned thing of the producer that an event is about. With a version it has a type and an id, too.
type Entity struct {
	Type    string
	ID      string
	Version int64
}

// LogValue logs an event, and with it a Received or a Delivery, by what identifies it: never a payload or a header.
func (e Event) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("namespace", e.Namespace), slog.String("topic", e.Topic), slog.String("event_id", e.ID.String()),
	}
	if e.TenantID.Valid {
		attrs = append(attrs, slog.String("tenant_id", e.TenantID.UUID.String()))
	}
	return slog.GroupValue(attrs...)
}

// Received is an event whose payload is not decoded yet.
type Received struct {
	Event
	Payload json.RawMessage
}

// Delivery is an event with its payload, decoded.
type Delivery[P any] struct {
	Event
	Payload P
}
