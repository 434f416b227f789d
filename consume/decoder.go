package consume

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
)

// Decoder turns the body of a message into the JSON of its payload, which has the names of the producer's YAML. e says
// which topic and version the payload has: e.Namespace, e.Topic and e.Version. It must be safe for concurrent use, and
// must not retain body.
//
// An error, like a panic, means that the payload is invalid: it wraps ErrInvalidPayload, which is permanent. A Decoder
// that needs something which may be unavailable, such as a registry of schemas, marks that error by outbox.Unavailable
// or outbox.RetryAfter: it is not permanent.
type Decoder func(e Event, body []byte) (json.RawMessage, error)

// WithDecoder returns a consumer that reads payloads with a content type by d, such as "application/protobuf". Case
// and parameters of a content type do not matter. JSON needs no decoder, so a consumer reads both while a producer
// changes from one to the other. The last decoder for a content type counts; nil removes it. c is not changed.
//
// The payload is checked like any other, payloads of older versions are brought to the present one, and the inbox keeps
// it as JSON.
func (c *Consumer) WithDecoder(contentType string, d Decoder) *Consumer {
	with := *c
	with.decoders = maps.Clone(c.decoders)
	if with.decoders == nil {
		with.decoders = make(map[string]Decoder)
	}
	if with.decoders[mediaType(contentType)] = d; d == nil {
		delete(with.decoders, mediaType(contentType))
	}
	return &with
}

// reads reports whether c can read payloads of a content type.
func (c *Consumer) reads(contentType string) bool {
	return c.decoders[mediaType(contentType)] != nil || isJSON(contentType)
}

// toJSON replaces the payload of r, an event of the topic of spec, by its JSON.
func (c *Consumer) toJSON(r *Received, contentType string, spec *TopicSpec) error {
	d := c.decoders[mediaType(contentType)]
	spec.name(&r.Event)
	if d == nil || r.Version > cmp.Or(spec.value().Version, 1) { // which is an error that says so
		return nil
	}
	payload, err := callDecoder(d, r)
	switch {
	case err == nil:
		r.Payload = payload
		return nil
	case errclass.Marked(err):
		return about(&r.Event, "", fmt.Errorf("decode payload: %w", err))
	}
	return about(&r.Event, "", fmt.Errorf("decode payload: %w: %w", err, ErrInvalidPayload))
}

// callDecoder calls d. The error of a panic has the type of its value and not the value, which may hold a payload.
func callDecoder(d Decoder, r *Received) (payload json.RawMessage, err error) {
	err = usercode.Private(usercode.Call("decoder", usercode.Never, func() (err error) {
		payload, err = d(r.Event, r.Payload)
		return err
	}))
	return payload, err
}
