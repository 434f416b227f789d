package consume

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/payload"
)

// Topic describes one kind of event with payload P, as the producer's YAML does. outboxgen generates one variable a
// topic.
type Topic[P any] struct {
	Namespace, Name string
	// Version is the payload's schema number.
	Version int
	// Validate checks a payload; nil means any will do.
	Validate func(P) error
}

// String returns "namespace/name".
func (t Topic[P]) String() string { return t.Namespace + "/" + t.Name }

// Decode reads the payload of r. A required field must be there, and the rules of the YAML must hold; what t does not
// know is passed over. A payload of an older version is decoded as far as it goes, without these checks, which are those
// of the newer one: Version tells. The error is an *Error that wraps ErrUnknownTopic, ErrUnknownVersion or
// ErrInvalidPayload.
func (t Topic[P]) Decode(r Received) (Delivery[P], error) {
	d := Delivery[P]{Event: r.Event}
	switch {
	case r.Namespace != t.Namespace || r.Topic != t.Name:
		return d, about(&r.Event, "", ErrUnknownTopic)
	case r.Version > t.Version:
		return d, about(&r.Event, "", fmt.Errorf("this consumer knows versions up to %d: %w", t.Version, ErrUnknownVersion))
	case !json.Valid(r.Payload):
		return d, invalid(&r.Event, "", "is no JSON")
	case !bytes.HasPrefix(bytes.TrimSpace(r.Payload), []byte("{")):
		return d, invalid(&r.Event, "", "is no JSON object")
	}
	if err := json.Unmarshal(r.Payload, &d.Payload); err != nil {
		field, kind := misfit(reflect.TypeFor[P](), r.Payload)
		if field == "" {
			return d, invalid(&r.Event, "", "does not fit its type")
		}
		return d, invalid(&r.Event, field, "does not fit "+kind.String())
	}
	if r.Version < t.Version {
		return d, nil
	}
	if field := missing(reflect.TypeFor[P](), r.Payload); field != "" {
		return d, invalid(&r.Event, field, "is missing")
	}
	if t.Validate == nil {
		return d, nil
	}
	if err := t.Validate(d.Payload); err != nil {
		field := ""
		if broken, ok := errors.AsType[*payload.ValidationError](err); ok && len(broken.Fields) > 0 {
			field = broken.Fields[0].Field
		} else {
			err = ErrInvalidPayload // a text that is not ours may hold a value
		}
		return d, about(&r.Event, field, err)
	}
	return d, nil
}

// The functions below walk payload types beside the JSON that they are decoded from. Generated types are structs,
// lists and maps of what decodes itself; they are not recursive.

// isStruct reports whether t is a generated struct, and not one that decodes itself, as time.Time does.
func isStruct(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Kind() == reflect.Struct && !p.Implements(reflect.TypeFor[json.Unmarshaler]()) && !p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// holdsStruct reports whether t is a generated struct, or made of some.
func holdsStruct(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return holdsStruct(t.Elem())
	}
	return isStruct(t)
}

// member is a field of a generated struct.
type member struct {
	name     string
	kind     reflect.Type
	optional bool
}

func membersOf(t reflect.Type) []member {
	list := make([]member, 0, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && f.IsExported() {
			list = append(list, member{name, f.Type, strings.Contains(options, "omitempty")})
		}
	}
	return list
}

// misfit returns the path of the first part of raw that does not decode into t, with its type; "" when there is none.
func misfit(t reflect.Type, raw json.RawMessage) (string, reflect.Type) {
	if json.Unmarshal(raw, reflect.New(t).Interface()) == nil {
		return "", nil
	}
	return inside(t, raw, func(t reflect.Type, raw json.RawMessage) (string, reflect.Type, bool) {
		if json.Unmarshal(raw, reflect.New(t).Interface()) == nil {
			return "", nil, false
		}
		path, kind := misfit(t, raw)
		if kind == nil {
			for kind = t; kind.Kind() == reflect.Pointer; {
				kind = kind.Elem()
			}
		}
		return path, kind, true
	}, nil)
}

// missing returns the path of the first required field that raw lacks; "" when there is none.
func missing(t reflect.Type, raw json.RawMessage) string {
	path, _ := inside(t, raw, func(t reflect.Type, raw json.RawMessage) (string, reflect.Type, bool) {
		if !holdsStruct(t) {
			return "", nil, false
		}
		path := missing(t, raw)
		return path, nil, path != ""
	}, func(m member, raw json.RawMessage, there bool) bool {
		if m.optional || there && string(raw) != "null" {
			return false
		}
		return !there || m.kind.Kind() != reflect.Slice && m.kind.Kind() != reflect.Map
	})
	return path
}

// inside looks at the parts of raw, which decodes into t, until one is at fault: by part, or, for the fields of a
// struct, by lacks, if that is given.
func inside(t reflect.Type, raw json.RawMessage, part func(reflect.Type, json.RawMessage) (string, reflect.Type, bool),
	lacks func(m member, raw json.RawMessage, there bool) bool,
) (string, reflect.Type) {
	switch {
	case t.Kind() == reflect.Pointer:
		return inside(t.Elem(), raw, part, lacks)
	case isStruct(t):
		var values map[string]json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			return "", nil
		}
		for _, m := range membersOf(t) {
			value, there := values[m.name]
			if lacks != nil && lacks(m, value, there) {
				return m.name, nil
			}
			if !there {
				continue
			}
			if path, kind, fault := part(m.kind, value); fault {
				return join(m.name, path), kind
			}
		}
	case t.Kind() == reflect.Slice:
		var values []json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			return "", nil
		}
		for i, value := range values {
			if path, kind, fault := part(t.Elem(), value); fault {
				return join("["+strconv.Itoa(i)+"]", path), kind
			}
		}
	case t.Kind() == reflect.Map:
		var values map[string]json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			return "", nil
		}
		best, of := "", reflect.Type(nil) // a key may be as sensitive as a value, and their order is none
		for _, value := range values {
			if path, kind, fault := part(t.Elem(), value); fault && (best == "" || path < best) {
				best, of = join("[*]", path), kind
			}
		}
		return best, of
	}
	return "", nil
}

// join puts a path below another.
func join(outer, inner string) string {
	switch {
	case inner == "" || inner[0] == '[':
		return outer + inner
	}
	return outer + "." + inner
}
