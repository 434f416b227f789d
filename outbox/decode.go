package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// decoder returns what makes of an event what a handler of t gets.
func decoder[P any](t Topic[P]) func(Event, json.RawMessage) (Delivery[P], error) {
	plain := plainOf(reflect.TypeFor[P]())
	return func(e Event, payload json.RawMessage) (Delivery[P], error) {
		d := Delivery[P]{Event: e}
		if e.Version > t.Version {
			return d, fmt.Errorf("payload has version %d, this process knows %d", e.Version, t.Version)
		}
		if plain.decode(payload, reflect.ValueOf(&d.Payload).Elem()) {
			return d, nil
		}
		if err := json.Unmarshal(payload, &d.Payload); err != nil {
			return d, Permanent(fmt.Errorf("decode payload: %w", decodeError(err)))
		}
		return d, nil
	}
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
