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
)

// Header names of the NATS protocol binding of CloudEvents. The official Go SDK reads content-type only in this case.
const (
	contentType     = "content-type"
	attributePrefix = "ce-"
	dataContentType = "ce-datacontenttype"
	serverPrefix    = "nats-" // instructions to the server, in any case
)

// messageOf encodes an event for a stream; "" means any stream. The message shares the event's payload.
func messageOf(encoder publish.Encoder, o publish.Outgoing, stream string) (*nats.Msg, error) {
	if !isSubject(o.Destination) {
		return nil, outbox.Permanent(fmt.Errorf("publish to NATS: %q is not a valid subject", o.Destination))
	}
	m, err := encoder.Encode(o)
	if err != nil {
		return nil, err
	}
	header := make(nats.Header, 3+len(m.Attributes)+len(m.Headers))
	for name, value := range m.Headers {
		if withheld(name) {
			continue
		}
		if !isHeader(name) || strings.ContainsAny(value, "\r\n") {
			return nil, outbox.Permanent(fmt.Errorf("publish to %s: NATS cannot carry header %q or its value",
				o.Destination, name))
		}
		header[name] = []string{value}
	}
	for name, value := range m.Attributes {
		header[attributePrefix+name] = []string{wireheader.PercentEncoded(value)}
	}
	if m.ContentType != "" {
		header[contentType] = []string{m.ContentType}
		if len(m.Attributes) > 0 {
			header[dataContentType] = []string{m.ContentType}
		}
	}
	header[jetstream.MsgIDHeader] = []string{o.ID.String()}
	if stream != "" {
		header[jetstream.ExpectedStreamHeader] = []string{stream}
	}
	return &nats.Msg{Subject: o.Destination, Header: header, Data: m.Body}, nil
}

// renamed returns msg under another id, for a stream that no longer has the message but reports a duplicate. The new id
// depends only on the missing message, so that the next attempt after a lost confirmation uses the same id.
func renamed(msg *nats.Msg, o publish.Outgoing, gone *jetstream.PubAck) *nats.Msg {
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
