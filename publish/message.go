// Package publish turns outgoing events into what goes over the wire, for the publishers below it. It imports no
// broker's client.
package publish

import "github.com/outboxgen/outboxgen/outbox"

// Message is an event as a broker gets it.
type Message struct {
	// ContentType of Body.
	ContentType string
	// Attributes are the context attributes of CloudEvents in binary mode, by their bare names (id, source, type,
	// ...); each protocol has its own prefix for them. Empty in structured mode and for plain JSON.
	Attributes map[string]string
	// Headers travel beside the body under their own names.
	Headers map[string]string
	Body    []byte
}

// Encoder turns an event into a Message. It is called from several goroutines.
type Encoder func(outbox.Outgoing) (Message, error)
