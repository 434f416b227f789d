package publish

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish/internal/attributes"
)

// Mode says where the attributes of a CloudEvent go.
type Mode int

const (
	// Binary puts the attributes into Message.Attributes. The body is the unchanged payload.
	Binary Mode = iota
	// Structured makes one JSON document of the attributes and the payload. It is the body.
	Structured
)

// Content types of the messages that the encoders make.
const (
	jsonType       = attributes.ContentType
	structuredType = "application/cloudevents+json"
)

// CloudEvents returns an Encoder for CloudEvents 1.0 (https://github.com/cloudevents/spec). The source is a URI
// reference that names the emitter of the events; "" means a slash and the namespace of each event.
//
// The attributes are id (of the event), source, type (Outgoing.Type), subject (the entity's id, or else the partition
// key), time (of the enqueue) and datacontenttype, which in binary mode is the message's ContentType. The extensions
// are dataversion, partitionkey, dedupekey, tenantid, entitytype, entityid, entityversion, and from the event's headers
// traceparent, tracestate, causationid (causation_id) and correlationid (correlation_id): names of CloudEvents have
// letters and digits only. All extensions are strings. Those that the event does not have are left out, as is an
// entityversion of 0. All other headers of the event stay headers.
//
// An event with a control character in one of these cannot be a CloudEvent: it is refused permanently. An invalid
// source or mode is an error in the configuration and loses no event: every event is handed back as if the broker were
// unavailable.
func CloudEvents(source string, mode Mode) Encoder {
	if err := checkSource(source); err != nil {
		return refuse(fmt.Errorf("encode event: CloudEvents source %w", err))
	}
	switch mode {
	case Binary:
		return func(o Outgoing) (Message, error) { return encodeBinary(source, o) }
	case Structured:
		return func(o Outgoing) (Message, error) { return encodeStructured(source, o) }
	default:
		return refuse(fmt.Errorf("encode event: CloudEvents mode %d is not valid: use Binary or Structured", mode))
	}
}

func refuse(err error) Encoder {
	err = outbox.Unavailable(err)
	return func(Outgoing) (Message, error) { return Message{}, err }
}

func checkSource(source string) error {
	if !attributes.IsText(source) {
		return errors.New("has a control character")
	}
	if _, err := url.Parse(source); err != nil {
		return errors.New("is not a URI reference")
	}
	return nil
}

func encodeBinary(source string, o Outgoing) (Message, error) {
	values, headers, err := attributesOf(source, o)
	if err != nil {
		return Message{}, err
	}
	return Message{ContentType: jsonType, Attributes: values, Headers: headers, Body: o.Payload}, nil
}

func encodeStructured(source string, o Outgoing) (Message, error) {
	values, headers, err := attributesOf(source, o)
	if err != nil {
		return Message{}, err
	}
	if !json.Valid(o.Payload) {
		return Message{}, outbox.Permanent(errors.New("encode event: the payload is not valid JSON"))
	}
	values["datacontenttype"] = jsonType
	body, err := json.Marshal(values)
	if err != nil {
		return Message{}, outbox.Permanent(fmt.Errorf("encode event: %w", err))
	}
	// The payload is inserted unchanged: encoding/json would rewrite it.
	body = append(body[:len(body)-1], `,"data":`...)
	body = append(append(body, o.Payload...), '}')
	return Message{ContentType: structuredType, Headers: headers, Body: body}, nil
}

// attributesOf returns the attributes of an event except datacontenttype, and the headers that are not attributes.
func attributesOf(source string, o Outgoing) (values, headers map[string]string, err error) {
	var list attributes.List
	of, err := list.Append(make([]attributes.Attribute, 0, attributes.Count), source, o.Type(), &o.Event)
	if err != nil {
		return nil, nil, err
	}
	values = make(map[string]string, len(of)+1)
	for _, a := range of {
		values[a.Name.String()] = string(a.Value)
	}
	headers = maps.Clone(o.Headers)
	for name, value := range headers {
		if attributes.IsHeader(name, value) {
			delete(headers, name)
		}
	}
	return values, headers, nil
}

// instant writes t as RFC 3339 in UTC; the zero time is "".
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func tenant(o Outgoing) string {
	if !o.TenantID.Valid {
		return ""
	}
	return o.TenantID.UUID.String()
}

func entityVersion(o Outgoing) string {
	if o.Entity.Version == 0 {
		return ""
	}
	return strconv.FormatInt(o.Entity.Version, 10)
}
