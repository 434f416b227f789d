// Package publish turns outgoing events into what goes over the wire, for the publishers below it. It imports no
// broker's client.
package publish

import (
	"fmt"
	"runtime/debug"

	"github.com/outboxgen/outboxgen/outbox"
)

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

// Encoder turns an event into a Message, which shares no memory with the event but its body. It is called from several
// goroutines. What an error of it means for the event is said as by a Publisher: outbox.Permanent and so on.
type Encoder func(outbox.Outgoing) (Message, error)

// Encode encodes one event. It is what publishers call: a nil Encoder is CloudEvents("", Binary), and a panic of e is
// an error.
func (e Encoder) Encode(o outbox.Outgoing) (m Message, err error) {
	if e == nil {
		return encodeBinary("", o)
	}
	defer func() {
		if r := recover(); r != nil {
			m, err = Message{}, fmt.Errorf("encode event: encoder panicked (%T)\n%s", r, debug.Stack()) // the value may hold the payload
		}
	}()
	return e(o)
}
