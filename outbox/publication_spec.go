package outbox

// Publication says where a topic is published and as what. Generated code fills it from the YAML.
type Publication[P any] struct {
	// Broker is the key of the Publisher in the configuration: "kafka", "nats" or "webhook".
	Broker string
	// Destination is the broker's name for where events go.
	Destination string
	// Key keeps events in order at the broker; nil means the partition key of the event.
	Key func(P) Key
	// Headers are sent beside those of the event; nil means none. The event's own win.
	Headers func(P) map[string]string
}
