package publish

import (
	"github.com/outboxgen/outboxgen/eventkey"
)

// Publication says where a topic is published and as what. Generated code fills it from the YAML.
type Publication struct {
	// Broker is the key of the Publisher in the configuration: "kafka", "nats", "amqp", "redis", "webhook" or a name of
	// your own.
	Broker string
	// Destination is the broker's name for where events go, unless DestinationOf is set.
	Destination string
	// DestinationOf returns where an event goes: 1 to 1,000 bytes, made from the payload, a pointer to a value of the
	// topic's type. nil means Destination for all events. An event without a destination is a dead letter. Each
	// destination rests alone and has separate calls of the Publisher, so that one that hangs or is unavailable holds up
	// no other. Queue topics only: a listener refuses it.
	DestinationOf func(payload any) string
	// WireName is the type of the messages; "" means namespace.topic.
	WireName string
	// Key keeps events in order at the broker. It is made from the payload, a pointer to a value of the topic's type. nil
	// means the partition key of the event.
	Key func(payload any) eventkey.Key
	// Headers are made from the payload, a pointer to a value of the topic's type, and sent with those of the event. nil
	// means none. If both have a header of the same name, the event's is sent.
	Headers func(payload any) map[string]string
	// Tombstone makes the events of the topic tombstones: see Outgoing.
	Tombstone bool
}
