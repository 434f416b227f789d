package nats

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/internal/broker/wireheader"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/attributes"
)

// Header names of the NATS protocol binding of CloudEvents. The official Go SDK reads content-type only in this case.
const (
	contentType     = "content-type"
	attributePrefix = "ce-"
	dataContentType = "ce-datacontenttype"
	serverPrefix    = "nats-" // instructions to the server, in any case
)

// prefixed are the header names of the attributes.
var prefixed = func() (names [attributes.Count]string) {
	for i, name := range attributes.Names {
		names[i] = attributePrefix + name
	}
	return names
}()

// encoding makes the messages of the events of one call. The messages share allocations.
type encoding struct {
	encoder publish.Encoder // nil means CloudEvents in binary mode, which are encoded without publish.Message
	stream  string          // that must take the messages; "" means any
	left    int             // number of events that may still be encoded

	subject string // the last valid one
	list    attributes.List
	found   []attributes.Attribute
	values  []string // room for the values of the next headers
}

// valuesPerEvent is how many headers most messages have at most.
const valuesPerEvent = 12

// set sets a header.
func (e *encoding) set(h nats.Header, name, value string) {
	if cap(e.values) == 0 {
		e.values = make([]string, 0, valuesPerEvent*max(1, min(e.left, 64)))
	}
	e.values = append(e.values, value)
	h[name], e.values = e.values[:1:1], e.values[1:]
}

// message encodes an event. The message shares the event's payload.
func (e *encoding) message(o *publish.Outgoing) (*nats.Msg, error) {
	if o.Destination != e.subject || o.Destination == "" {
		if !isSubject(o.Destination) {
			return nil, outbox.Permanent(fmt.Errorf("publish to NATS: %q is not a valid subject", o.Destination))
		}
		e.subject = o.Destination
	}
	var header nats.Header
	var body []byte
	var err error
	if e.encoder == nil {
		header, body, err = e.binary(o)
	} else {
		header, body, err = e.encoded(o)
	}
	if err != nil {
		return nil, err
	}
	if e.stream != "" {
		e.set(header, jetstream.ExpectedStreamHeader, e.stream)
	}
	e.left--
	return &nats.Msg{Subject: o.Destination, Header: header, Data: body}, nil
}

// binary encodes an event as publish.CloudEvents in binary mode does.
func (e *encoding) binary(o *publish.Outgoing) (nats.Header, []byte, error) {
	var err error
	if e.found, err = e.list.Append(e.found[:0], "", o.Type(), &o.Event); err != nil {
		return nil, nil, err
	}
	header := make(nats.Header, 4+len(e.found)+len(o.Headers))
	if err := e.addHeaders(header, o.Destination, o.Headers, true); err != nil {
		return nil, nil, err
	}
	for _, a := range e.found {
		value := e.list.Text(a)
		e.set(header, prefixed[a.Name], wireheader.PercentEncoded(value))
		if a.Name == attributes.ID {
			e.set(header, jetstream.MsgIDHeader, value)
		}
	}
	e.set(header, contentType, attributes.ContentType)
	e.set(header, dataContentType, attributes.ContentType)
	return header, o.Payload, nil
}

// encoded encodes an event with the encoder of the configuration.
func (e *encoding) encoded(o *publish.Outgoing) (nats.Header, []byte, error) {
	m, err := e.encoder.Encode(*o)
	if err != nil {
		return nil, nil, err
	}
	header := make(nats.Header, 4+len(m.Attributes)+len(m.Headers))
	if err := e.addHeaders(header, o.Destination, m.Headers, false); err != nil {
		return nil, nil, err
	}
	for name, value := range m.Attributes {
		e.set(header, attributePrefix+name, wireheader.PercentEncoded(value))
	}
	if m.ContentType != "" {
		e.set(header, contentType, m.ContentType)
		if len(m.Attributes) > 0 {
			e.set(header, dataContentType, m.ContentType)
		}
	}
	e.set(header, jetstream.MsgIDHeader, o.ID.String())
	return header, m.Body, nil
}

// addHeaders adds the headers of an event. sent says that those of a trace and of a chain are attributes already.
func (e *encoding) addHeaders(to nats.Header, destination string, headers map[string]string, sent bool) error {
	for name, value := range headers {
		if withheld(name) || sent && attributes.IsHeader(name, value) {
			continue
		}
		if !isHeader(name) || strings.ContainsAny(value, "\r\n") {
			return outbox.Permanent(fmt.Errorf("publish to %s: NATS cannot carry header %q or its value", destination, name))
		}
		e.set(to, name, value)
	}
	return nil
}

// renamed returns msg under another id, for a stream that no longer has the message but reports a duplicate. The new id
// depends only on the missing message, so that the next attempt after a lost confirmation uses the same id.
func renamed(msg *nats.Msg, o *publish.Outgoing, gone *jetstream.PubAck) *nats.Msg {
	header := maps.Clone(msg.Header)
	header[jetstream.MsgIDHeader] = []string{fmt.Sprintf("%s:%d", o.ID, gone.Sequence)}
	return &nats.Msg{Subject: msg.Subject, Header: header, Data: msg.Data}
}

// withheld reports whether a header of an event is left out, because it has a meaning for the publisher or the server.
func withheld(name string) bool {
	name = strings.ToLower(name)
	return name == contentType || strings.HasPrefix(name, attributePrefix) || strings.HasPrefix(name, serverPrefix)
}

// isHeader reports whether NATS can carry a header with that name: printable ASCII except space and colon.
func isHeader(name string) bool {
	for _, c := range []byte(name) {
		if c <= ' ' || c >= 0x7f || c == ':' {
			return false
		}
	}
	return name != ""
}

// isSubject reports whether s is a subject to publish to: tokens separated by dots, without wildcards.
func isSubject(s string) bool {
	for token := range strings.SplitSeq(s, ".") {
		if token == "" || token == "*" || token == ">" {
			return false
		}
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// errNotConnected is the error of sending without a connection.
var errNotConnected = errors.New("not connected")
