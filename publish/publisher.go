package publish

import (
	"context"
	"encoding/json"

	"github.com/outboxgen/outboxgen/outbox"
)

// Publisher forwards events to a broker. The topics that publish say so in the YAML; dispatchers and listeners call it
// in place of a handler.
type Publisher interface {
	// Publish sends events and returns an error for each, in their order: nil once the broker has it permanently.
	//
	// The error decides what becomes of its event:
	//   - outbox.Permanent: the event becomes a dead letter immediately.
	//   - outbox.Unavailable, outbox.BrokerUnavailable: the event is handed back with its attempt uncounted, and its
	//     destination, or the whole broker, rests: see outbox.Breaker.
	//   - outbox.ErrBehind: the event was not sent, because an earlier event with its key failed. It is handed back,
	//     uncounted.
	//   - outbox.ErrNotSent: the event was not sent for another reason. It is handed back, uncounted, and nothing rests.
	//   - outbox.RetryAfter: the attempt failed and is repeated after a delay.
	//   - Any other error: the attempt failed. When different events of a destination fail in a row it rests: see
	//     outbox.Breaker.
	//
	// A call that panics, ends its goroutine or returns the wrong number of errors is repeated with half of its events,
	// and so on, until the event to blame is alone. The others may arrive twice.
	//
	// Events with the same non-empty Key are in order, and are to reach the broker in that order: when one of them
	// fails, Publish sends none of those behind it and returns outbox.ErrBehind for them.
	//
	// When ctx ends, Publish returns as soon as it can. It returns outbox.ErrNotSent, or an error that wraps it, for each
	// event of which nothing was handed to the broker, so that a shutdown costs such an event no attempt. What may have
	// been sent, or not, is an ordinary error: its attempt counts. ctx ends when the process stops if the destination or
	// broker rests, otherwise after ShutdownTimeout of the dispatcher or listener.
	//
	// Publish must not retain events. It is called from several goroutines concurrently, never with one key and
	// destination in two of them. Calls with different destinations must not wait for each other longer than the broker's
	// limits require.
	Publish(ctx context.Context, events []Outgoing) []error
}

// Outgoing is an event on its way to a broker.
type Outgoing struct {
	outbox.Event
	Payload json.RawMessage
	// Destination is the broker's name for where it goes: a Kafka topic, a NATS subject, the name of a webhook.
	Destination string
	// Key keeps events in order at the broker; "" means none.
	Key string
	// WireName is the name of the topic for consumers; "" means namespace.topic. Encoders use Type.
	WireName string
	// Tombstone says that the event deletes what the broker keeps of its key. A Kafka record then has no value, and the
	// body of the message is its header TombstoneHeader. Other brokers have no tombstones, and their publishers ignore it.
	Tombstone bool
}

// TombstoneHeader is the header of a Kafka record that has no value. It has what the value would be.
const TombstoneHeader = "outbox-tombstone"

// Type returns the type of the message, by which consumers know the topic: WireName, or else namespace.topic.
func (o Outgoing) Type() string {
	if o.WireName != "" {
		return o.WireName
	}
	return o.Namespace + "." + o.Topic
}
