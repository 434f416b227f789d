package consume

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/outboxgen/outboxgen/payload"
)

// Topic describes one kind of event with payload P, as in the producer's YAML. outboxgen generates one variable per
// topic.
type Topic[P any] struct {
	Namespace, Name string
	// Version is the newest schema number of the payload that this consumer knows. 0 means 1, as in outbox.Topic.
	Version int
	// Validate checks the rules of the YAML. Only DecodeStrict and a strict Consumer call it. nil accepts every payload.
	Validate func(P) error
}

// String returns "namespace/name".
func (t Topic[P]) String() string { return t.Namespace + "/" + t.Name }

func (t Topic[P]) version() int { return max(t.Version, 1) }

// Decode reads the payload of r and checks its structure: every required field is present, and every field has its type.
// Fields that t does not know are ignored. Decode does not check the bounds of the YAML, and an enum may have a value that
// t does not know. So a producer can widen its rules before its consumers are updated. Use the enum's method Known to test
// a value.
//
// A payload of an older version may lack required fields; Delivery.Version says which version it is. The error is an
// *Error that wraps ErrUnknownTopic, ErrUnknownVersion or ErrInvalidPayload.
func (t Topic[P]) Decode(r Received) (Delivery[P], error) {
	return t.decode(r, shapeOf(reflect.TypeFor[P]()), false)
}

// DecodeStrict is Decode and also checks the rules of the YAML that the package was generated from: bounds, patterns and
// the values of enums. It does not check these rules for a payload of an older version.
func (t Topic[P]) DecodeStrict(r Received) (Delivery[P], error) {
	return t.decode(r, shapeOf(reflect.TypeFor[P]()), true)
}

// decode is Decode or DecodeStrict. It takes the shape of P, which is expensive to compute.
func (t Topic[P]) decode(r Received, s *shape, strict bool) (Delivery[P], error) {
	d := Delivery[P]{Event: r.Event}
	switch {
	case r.Namespace != t.Namespace || r.Topic != t.Name:
		return d, about(&r.Event, "", ErrUnknownTopic)
	case r.Version > t.version():
		return d, about(&r.Event, "", fmt.Errorf("this consumer knows versions up to %d: %w", t.version(), ErrUnknownVersion))
	case !json.Valid(r.Payload):
		return d, invalid(&r.Event, "", "is not JSON")
	case !bytes.HasPrefix(bytes.TrimSpace(r.Payload), []byte("{")):
		return d, invalid(&r.Event, "", "is not a JSON object")
	}
	if err := json.Unmarshal(r.Payload, &d.Payload); err != nil {
		field, kind := s.misfit(r.Payload)
		if field == "" {
			return d, invalid(&r.Event, "", "does not fit its type")
		}
		return d, invalid(&r.Event, field, "does not fit "+kind.String())
	}
	if r.Version < t.version() {
		return d, nil
	}
	if field := s.missing(r.Payload); field != "" {
		return d, invalid(&r.Event, field, "is missing")
	}
	if t.Validate == nil || !strict {
		return d, nil
	}
	if err := t.Validate(d.Payload); err != nil {
		field := ""
		if broken, ok := errors.AsType[*payload.ValidationError](err); ok && len(broken.Fields) > 0 {
			field = broken.Fields[0].Field
		} else {
			err = ErrInvalidPayload // the text of a foreign error may hold a value
		}
		return d, about(&r.Event, field, err)
	}
	return d, nil
}
