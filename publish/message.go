// Package publish has what publishers share: the interface Publisher, the message that goes over the wire, the encoders
// that make it, and Each, which does the bookkeeping of a publisher. It does not import a broker's client. The
// publishers are separate modules: publish/kafka, publish/nats and publish/webhook.
//
// To use a publisher, create it and pass it to the dispatcher or listener under the name of its broker. Choose an
// Encoder in its configuration. A nil Encoder means CloudEvents 1.0 in binary mode; CloudEvents and JSON return others.
//
//	publisher, err := kafka.New(kafka.Config{
//		Brokers: []string{"kafka-1:9092"},
//		Encoder: publish.CloudEvents("/accounts", publish.Structured),
//	})
//
// To write a publisher for a broker that takes one message at a time, implement Publisher with Each. Each keeps the
// order of keys and reports what was not sent. Your function encodes one event with Encoder.Encode, sends it, and says
// what an error means. docs/run/publishers.md has a complete publisher of 60 lines. Package publishtest tests it.
//
// # What can go wrong
//
// An event that an encoder refuses with outbox.Permanent becomes a dead letter. A wrong configuration of an encoder
// loses nothing: every event is handed back, as if the broker were unavailable.
package publish

import "github.com/outboxgen/outboxgen/internal/call/usercode"

// Message is an event in the form in which a broker gets it.
type Message struct {
	// ContentType is that of Body.
	ContentType string
	// Attributes are the context attributes of CloudEvents in binary mode, by name without a prefix (id, source, type,
	// ...); each protocol adds its own prefix. They are empty in structured mode and for plain JSON.
	Attributes map[string]string
	// Headers are sent with the body under their own names.
	Headers map[string]string
	Body    []byte
}

// Encoder makes a Message of an event. The Message may share the payload with the event and nothing else. An Encoder
// must be safe for concurrent use. Its error says what happens to the event, like the error of a Publisher:
// outbox.Permanent and so on.
type Encoder func(Outgoing) (Message, error)

// Encode encodes one event. Publishers call this method and not e itself: a nil Encoder means CloudEvents("", Binary),
// and a panic of e becomes an error. runtime.Goexit ends the caller's goroutine, for which whoever calls a Publisher is
// prepared.
func (e Encoder) Encode(o Outgoing) (m Message, err error) {
	if e == nil {
		return encodeBinary("", o)
	}
	crashed := usercode.Private(usercode.Recover("encode event: encoder", func() error {
		m, err = e(o)
		return nil
	}))
	if crashed != nil {
		return Message{}, crashed
	}
	return m, err
}
