// Package consume is the runtime behind the consumer packages that outboxgen generates. It reads a message of any
// broker, decodes its payload by topic and version, checks the payload's structure, and applies the effect of each
// event exactly once in the consumer's transaction, with the help of package inbox. It does not depend on the
// producer's code or on a broker's client.
//
// Start with the generated constructor, such as NewUserConsumer, which takes an inbox and your implementation of the
// generated interface. Hand it each message of the broker, and acknowledge the message after Consume has returned nil:
//
//	ib, err := inbox.New(inbox.Config{Group: "cards"})
//	...
//	consumer, err := userevents.NewUserConsumer(ib, cards{})
//	...
//	_, err = consumer.Consume(ctx, pool, consume.FromKafka(record.Headers, record.Value))
//	switch {
//	case err == nil:
//		// Acknowledge the message: it was applied, or there was nothing to do.
//	case consume.IsPermanent(err):
//		// Quarantine the message: keep it with the reason, and continue with the next one.
//	default:
//		// Try again after a pause, for example until the database answers.
//	}
//
// FromKafka, FromNATS, FromAMQP, FromRedis and FromHTTP make a Message of what a broker's client delivers. The event in
// it is a CloudEvent 1.0 or plain JSON with outbox headers. Without generated code, New, Handle and a Topic variable do
// the same as the generated constructor. To read events without an inbox, use Parse and then Topic.Decode.
//
// # What can go wrong
//
// Errors are of type *Error, which names the topic, version and id of the event as far as they are known. They never
// carry a value of a payload. A message that cannot be read, that has an unknown topic or a newer version, or whose
// payload does not have the expected structure, is a permanent error: the same message fails again however often it is
// tried. IsPermanent tells such errors from those that may pass.
//
// The promise covers what a consumer's method writes with its transaction. An effect elsewhere, such as an e-mail, can
// happen twice.
package consume

import (
	"encoding/json"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// Event is the metadata of an event: what a message says about it apart from the payload. Fields that the event does
// not have are zero.
type Event struct {
	ID uuid.UUID
	// Source names the emitter of the event. Only CloudEvents have it, and records of Debezium if it was exported with a
	// source.
	Source string
	// Type is the name of the topic on the wire: namespace.topic, or the wire_name that the producer's YAML gives it.
	Type string
	// Namespace and Topic are those of the producer's YAML. Parse takes them from a Type of the form namespace.topic and
	// leaves them empty for any other. A Consumer, and Topic.Decode, set them for a wire_name.
	Namespace, Topic string
	// Version is the schema number of the payload.
	Version  int
	TenantID uuid.NullUUID
	Entity   Entity
	// PartitionKey is the key by which the producer orders events. The broker orders by it too, unless the YAML names
	// another key.
	PartitionKey string
	DedupeKey    string
	// Time is when the event was enqueued.
	Time time.Time
	// Headers are the headers of the event, with traceparent and tracestate, with causation_id and correlation_id, and all
	// others that the broker delivered.
	Headers map[string]string
}

// Entity is the thing of the producer that an event is about. An entity with a version has a type and an id, too.
type Entity struct {
	Type    string
	ID      string
	Version int64
}

// LogValue logs the identifying fields of an event, and thereby of a Received or a Delivery. It never logs a payload or
// a header.
func (e Event) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("namespace", e.Namespace), slog.String("topic", e.Topic), slog.String("event_id", e.ID.String()),
	}
	if e.TenantID.Valid {
		attrs = append(attrs, slog.String("tenant_id", e.TenantID.UUID.String()))
	}
	return slog.GroupValue(attrs...)
}

// Received is an event whose payload has not been decoded yet.
type Received struct {
	Event
	Payload json.RawMessage
}

// Delivery is an event with its decoded payload.
type Delivery[P any] struct {
	Event
	Payload P
}
