package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/outboxgen/outboxgen/internal/plainjson"
)

// decoder returns what makes of an event what a handler of t gets.
func decoder[P any](t Topic[P]) func(Event, json.RawMessage) (Delivery[P], error) {
	plain := plainjson.Of(reflect.TypeFor[P]())
	nullable := takesNull(reflect.TypeFor[P]())
	known := t.version()
	return func(e Event, payload json.RawMessage) (Delivery[P], error) {
		if e.Version > known {
			return Delivery[P]{}, fmt.Errorf("payload has version %d, this process knows %d", e.Version, known)
		}
		p := new(P) // not the whole Delivery, which is larger
		if !plain.Decode(payload, reflect.ValueOf(p).Elem()) {
			if !nullable && bytes.Equal(bytes.TrimSpace(payload), []byte("null")) { // json.Unmarshal leaves *p as it is
				return Delivery[P]{}, Permanent(fmt.Errorf("decode payload: it is null, which is not a valid %s", reflect.TypeFor[P]()))
			}
			if err := json.Unmarshal(payload, p); err != nil {
				return Delivery[P]{}, Permanent(fmt.Errorf("decode payload: %w", decodeError(err)))
			}
		}
		return Delivery[P]{Event: e, Payload: *p}, nil
	}
}

// takesNull tells whether null is a value of t: that of a nil pointer, map, list or interface, or what t makes of it.
func takesNull(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	}
	return reflect.PointerTo(t).Implements(plainjson.Unmarshaler)
}

// decodeError keeps the place of a decoding error and drops the value, which may be sensitive.
func decodeError(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Errorf("field %q does not fit %s", kind.Field, kind.Type)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("invalid JSON at byte %d", syntax.Offset)
	}
	return errors.New("a field does not fit its type")
}
