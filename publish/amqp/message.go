package amqp

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/attributes"
)

// attributePrefix is the prefix of the CloudEvents attributes. The AMQP binding also allows cloudEvents_; the SDKs read
// this one.
const attributePrefix = "cloudEvents:"

// maxShort is the maximum length of a short string of AMQP: a name, a routing key, a property.
const maxShort = 255

// address is where a message goes.
type address struct{ exchange, key string }

// parseAddress reads a destination.
func parseAddress(destination string) (address, error) {
	refuse := func(why string) (address, error) {
		return address{}, fmt.Errorf("%q is not a valid address: %s", destination, why)
	}
	rest, isQueue := strings.CutPrefix(destination, "/queues/")
	if !isQueue {
		var isExchange bool
		if rest, isExchange = strings.CutPrefix(destination, "/exchanges/"); !isExchange {
			return refuse("use /exchanges/NAME/ROUTING-KEY, /exchanges/NAME or /queues/NAME")
		}
	}
	first, second, two := strings.Cut(rest, "/")
	name, err := url.PathUnescape(first)
	if err != nil {
		return refuse("percent-encode the name")
	}
	key, err := url.PathUnescape(second)
	if err != nil {
		return refuse("percent-encode the routing key")
	}
	switch {
	case name == "":
		return refuse("the name is empty")
	case isQueue && two, strings.Contains(second, "/"):
		return refuse("write a slash in a name as %2F")
	case len(name) > maxShort || len(key) > maxShort:
		return refuse("AMQP has names and routing keys of up to 255 bytes")
	case isQueue:
		return address{key: name}, nil // the default exchange
	}
	return address{exchange: name, key: key}, nil
}

// String says in words where a message goes.
func (a address) String() string {
	if a.exchange == "" {
		return "queue " + a.key
	}
	return fmt.Sprintf("exchange %s with routing key %q", a.exchange, a.key)
}

// prefixed are the names of the attributes as headers.
var prefixed = func() (names [attributes.Count]string) {
	for i, name := range attributes.Names {
		names[i] = attributePrefix + name
	}
	return names
}()

// encoding makes messages of the events of one call.
type encoding struct {
	encoder publish.Encoder // nil means CloudEvents in binary mode, which are encoded without publish.Message

	list  attributes.List
	found []attributes.Attribute
	boxed [attributes.Count]value // the latest value of each attribute
}

// value is the value of an attribute, and the same as the value of a header.
type value struct {
	bytes []byte
	boxed any
}

// message encodes an event. The message has a copy of the payload, because it may still be on its way when Publish has
// returned.
func (e *encoding) message(o *publish.Outgoing) (amqp091.Publishing, error) {
	msg := amqp091.Publishing{
		ContentType: attributes.ContentType, DeliveryMode: amqp091.Persistent, MessageId: o.ID.String(), Timestamp: o.CreatedAt,
		Type: o.Type(),
	}
	if e.encoder == nil {
		var err error
		if e.found, err = e.list.Append(e.found[:0], "", msg.Type, &o.Event); err != nil {
			return amqp091.Publishing{}, err
		}
		msg.Headers = make(amqp091.Table, len(o.Headers)+len(e.found))
		for name, value := range o.Headers {
			if !withheld(name) && !attributes.IsHeader(name, value) {
				msg.Headers[name] = value
			}
		}
		for _, a := range e.found {
			msg.Headers[prefixed[a.Name]] = e.box(a)
		}
		msg.Body = bytes.Clone(o.Payload)
		return msg, checkMessage(o.Destination, msg)
	}
	m, err := e.encoder.Encode(*o)
	if err != nil {
		return amqp091.Publishing{}, err
	}
	msg.Headers = make(amqp091.Table, len(m.Attributes)+len(m.Headers))
	for name, value := range m.Headers {
		if !withheld(name) {
			msg.Headers[name] = value
		}
	}
	for name, value := range m.Attributes {
		msg.Headers[attributePrefix+name] = value
	}
	msg.ContentType, msg.Body = m.ContentType, bytes.Clone(m.Body)
	return msg, checkMessage(o.Destination, msg)
}

// box returns the value of an attribute. The one before is used again if it is the same.
func (e *encoding) box(a attributes.Attribute) any {
	last := &e.boxed[a.Name]
	if len(last.bytes) != len(a.Value) || len(a.Value) == 0 || &last.bytes[0] != &a.Value[0] {
		*last = value{a.Value, string(a.Value)}
	}
	return last.boxed
}

// checkMessage refuses what AMQP cannot carry.
func checkMessage(destination string, msg amqp091.Publishing) error {
	for name := range msg.Headers {
		if name == "" || len(name) > maxShort {
			return outbox.Permanent(fmt.Errorf(
				"publish to %s: AMQP cannot carry header %.80q: use a name of 1 to 255 bytes", destination, name))
		}
	}
	if len(msg.ContentType) > maxShort || len(msg.Type) > maxShort {
		return outbox.Permanent(errors.New("publish to " + destination +
			": AMQP cannot carry a content type or a type of more than 255 bytes"))
	}
	return nil
}

// withheld reports whether a header of an event is left out, because it has a meaning for consumers or the server.
func withheld(name string) bool {
	lower := strings.ToLower(name)
	return name == "CC" || name == "BCC" || strings.HasPrefix(lower, "cloudevents:") ||
		strings.HasPrefix(lower, "cloudevents_")
}

// headerSize returns an upper bound of the size of a message's content header, whose values are all text.
func headerSize(msg amqp091.Publishing) int {
	size := 64 + len(msg.ContentType) + len(msg.MessageId) + len(msg.Type)
	for name, value := range msg.Headers {
		text, _ := value.(string)
		size += 6 + len(name) + len(text)
	}
	return size
}
