package fastjson

import (
	"bytes"
	"encoding/json"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Shape describes a payload type, to find the place where JSON does not fit it or is incomplete. Generated types are
// structs, lists and maps of types that decode themselves. They are not recursive.
type Shape struct {
	of       reflect.Type
	members  []member // of a generated struct
	elem     *Shape   // of a pointer, a list or a map
	nullable bool     // null is a value of it: an item of a list of lists may be null
	zero     zero
	walk     bool // something inside may be incomplete
	nulls    bool // and only by being null or ""
}

// member is a field of a generated struct.
type member struct {
	name     string
	shape    *Shape
	required bool
}

// zero says whether the zero value of a type is invalid where a value is required.
type zero int

const (
	zeroFine zero = iota
	zeroUUID
	zeroTime
	zeroEnum
)

func zeroOf(t reflect.Type) zero {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return zeroTime
	case t.Kind() == reflect.Array && t.Len() == 16 && t.Elem().Kind() == reflect.Uint8:
		return zeroUUID
	case t.Kind() == reflect.String && t.Implements(reflect.TypeFor[interface{ Known() bool }]()):
		return zeroEnum
	}
	return zeroFine // a zero payload.Date does not decode
}

// of reports whether v, of the type of z, has the invalid zero value.
func (z zero) of(v reflect.Value) bool {
	switch z {
	case zeroUUID:
		return v.IsZero()
	case zeroTime:
		return v.Addr().Interface().(*time.Time).IsZero()
	case zeroEnum:
		return v.Len() == 0
	}
	return false
}

// fault says what is wrong with a zero value.
func (z zero) fault() string {
	switch z {
	case zeroUUID:
		return "is the zero UUID"
	case zeroTime:
		return "is the zero time"
	}
	return "is empty"
}

// shapes holds the shape of each type of payload.
var shapes sync.Map // from reflect.Type to *Shape

// ShapeOf returns the shape of t.
func ShapeOf(t reflect.Type) *Shape {
	known, ok := shapes.Load(t)
	if !ok {
		known, _ = shapes.LoadOrStore(t, newShape(t, nil))
	}
	return known.(*Shape)
}

// newShape returns the shape of t. within are the types that t is part of. A type that contains itself, which no
// generated one does, is not looked into twice.
func newShape(t reflect.Type, within []reflect.Type) *Shape {
	s := &Shape{of: t, zero: zeroOf(t)}
	if slices.Contains(within, t) {
		return s
	}
	within = append(within[:len(within):len(within)], t)
	kind := t.Kind()
	s.nullable = slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface}, kind)
	switch {
	case kind == reflect.Slice && (t.Elem().Kind() == reflect.Uint8 || reflect.PointerTo(t).Implements(Unmarshaler)):
		// bytes and raw JSON are one value
	case s.nullable && kind != reflect.Interface:
		s.elem = newShape(t.Elem(), within)
		s.walk, s.nulls = s.elem.walk, s.elem.nulls
		if kind != reflect.Pointer && (!s.elem.nullable || s.elem.zero == zeroEnum) {
			s.nulls = !s.elem.walk || s.elem.nulls
			s.walk = true
		}
	case isGenerated(t):
		s.addMembers(within)
	}
	return s
}

// addMembers fills in the fields of a generated struct.
func (s *Shape) addMembers(within []reflect.Type) {
	for i := range s.of.NumField() {
		f := s.of.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && f.IsExported() {
			m := member{name: name, shape: newShape(f.Type, within), required: !strings.Contains(options, "omitempty")}
			s.members = append(s.members, m)
			s.walk = s.walk || m.required || m.shape.walk
		}
	}
}

// isGenerated reports whether t is a generated struct, rather than one that decodes itself such as time.Time.
func isGenerated(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Kind() == reflect.Struct && !p.Implements(Unmarshaler) && !p.Implements(textUnmarshaler)
}

// isJSON reports whether s is raw JSON, of which null is a value like others.
func (s *Shape) isJSON() bool { return s.of == reflect.TypeFor[json.RawMessage]() }

var null = []byte("null")

// Incomplete returns the path of the first required field of raw that is missing, null or zero, and what is wrong with
// it; "" if there is none. An item of a list or map that is null counts too, unless it is a list or a map itself. raw
// must decode into the type.
func (s *Shape) Incomplete(raw json.RawMessage) (path, fault string) {
	if !s.walk || s.nulls && !bytes.Contains(raw, null) && !bytes.Contains(raw, []byte(`""`)) {
		return "", ""
	}
	path = s.first(raw, func(inner *Shape, raw json.RawMessage, m *member) (string, bool) {
		isNull := bytes.Equal(raw, null)
		switch {
		case isNull && (m != nil && !m.required || inner.isJSON()):
			return "", false
		case isNull && (m != nil || !inner.nullable):
			fault = "is null"
			return "", true
		case isNull:
			return "", false
		}
		if inner.zero != zeroFine && (m != nil && m.required || m == nil && inner.zero == zeroEnum) {
			v := reflect.New(inner.of)
			if json.Unmarshal(raw, v.Interface()) == nil && inner.zero.of(v.Elem()) {
				fault = inner.zero.fault()
				return "", true
			}
		}
		var path string
		path, fault = inner.Incomplete(raw)
		return path, fault != ""
	}, func() { fault = "is missing" })
	return path, fault
}

// Misfit returns the path of the first part of raw that does not decode into its type, and that type. The path of the
// whole is "".
func (s *Shape) Misfit(raw json.RawMessage) (string, reflect.Type) {
	of := s.of
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	path := s.first(raw, func(inner *Shape, raw json.RawMessage, _ *member) (string, bool) {
		if json.Unmarshal(raw, reflect.New(inner.of).Interface()) == nil {
			return "", false
		}
		var path string
		path, of = inner.Misfit(raw)
		return path, true
	}, nil)
	return path, of
}

// first returns the path of the first faulty part of raw. part judges each part that is there; it gets the member of a
// part that is a field. A required field that is not there is faulty if missing is given, which is then called.
func (s *Shape) first(
	raw json.RawMessage, part func(*Shape, json.RawMessage, *member) (string, bool), missing func(),
) string {
	switch s.of.Kind() {
	case reflect.Pointer:
		if s.elem != nil {
			return s.elem.first(raw, part, missing)
		}
	case reflect.Struct:
		var values map[string]json.RawMessage
		if len(s.members) == 0 || json.Unmarshal(raw, &values) != nil {
			return ""
		}
		for i := range s.members {
			m := &s.members[i]
			value, there := values[m.name]
			if !there {
				if missing != nil && m.required {
					missing()
					return m.name
				}
				continue
			}
			if path, fault := part(m.shape, value, m); fault {
				return join(m.name, path)
			}
		}
	case reflect.Slice, reflect.Map:
		if s.elem == nil {
			return ""
		}
		for name, value := range s.items(raw) {
			if path, fault := part(s.elem, value, nil); fault {
				return join(name, path)
			}
		}
	}
	return ""
}

// items returns the items of a list and the values of a map, each with its place in a path. A key may be as sensitive
// as a value, so that of a map is [*].
func (s *Shape) items(raw json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		var items []json.RawMessage
		var values map[string]json.RawMessage
		if s.of.Kind() == reflect.Slice && json.Unmarshal(raw, &items) != nil ||
			s.of.Kind() == reflect.Map && json.Unmarshal(raw, &values) != nil {
			return
		}
		for i, item := range items {
			if !yield("["+strconv.Itoa(i)+"]", item) {
				return
			}
		}
		for _, value := range values {
			if !yield("[*]", value) {
				return
			}
		}
	}
}

// join appends a path to another one.
func join(outer, inner string) string {
	if inner == "" || inner[0] == '[' {
		return outer + inner
	}
	return outer + "." + inner
}
