package consume

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// shape describes a payload type, to find the place where JSON does not fit it. Generated types are structs, lists and
// maps of types that decode themselves. They are not recursive.
type shape struct {
	of      reflect.Type
	members []member // of a generated struct
	elem    *shape   // of a pointer, a list or a map
	structs bool     // contains a generated struct
}

// member is a field of a generated struct.
type member struct {
	name     string
	shape    *shape
	required bool
	nullable bool // nil encodes as null
}

// shapes holds the shape of each type of payload.
var shapes sync.Map // from reflect.Type to *shape

func shapeOf(t reflect.Type) *shape {
	known, ok := shapes.Load(t)
	if !ok {
		known, _ = shapes.LoadOrStore(t, newShape(t))
	}
	return known.(*shape)
}

func newShape(t reflect.Type) *shape {
	s := &shape{of: t}
	switch {
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map:
		s.elem = newShape(t.Elem())
		s.structs = s.elem.structs
	case isGenerated(t):
		s.structs = true
		for i := range t.NumField() {
			f := t.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" && name != "-" && f.IsExported() {
				kind := f.Type.Kind()
				s.members = append(s.members, member{
					name: name, shape: newShape(f.Type), required: !strings.Contains(options, "omitempty"),
					nullable: kind == reflect.Slice || kind == reflect.Map,
				})
			}
		}
	}
	return s
}

// isGenerated reports whether t is a generated struct, rather than one that decodes itself such as time.Time.
func isGenerated(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Kind() == reflect.Struct && !p.Implements(reflect.TypeFor[json.Unmarshaler]()) && !p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// missing returns the path of the first required field that raw lacks, or "". raw must decode into s.
func (s *shape) missing(raw json.RawMessage) string {
	if !s.structs {
		return ""
	}
	return s.first(raw, func(inner *shape, raw json.RawMessage) (string, bool) {
		path := inner.missing(raw)
		return path, path != ""
	}, func(m *member, raw json.RawMessage, there bool) bool {
		return m.required && (!there || !m.nullable && string(raw) == "null")
	})
}

// misfit returns the path of the first part of raw that does not decode into its type, and that type. The path of the
// whole is "".
func (s *shape) misfit(raw json.RawMessage) (string, reflect.Type) {
	of := s.of
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	path := s.first(raw, func(inner *shape, raw json.RawMessage) (string, bool) {
		if json.Unmarshal(raw, reflect.New(inner.of).Interface()) == nil {
			return "", false
		}
		var path string
		path, of = inner.misfit(raw)
		return path, true
	}, nil)
	return path, of
}

// first returns the path of the first faulty part of raw. part judges each part that is there. lacks, if given, judges
// each field of a struct before, whether or not it is there.
func (s *shape) first(raw json.RawMessage, part func(*shape, json.RawMessage) (string, bool),
	lacks func(m *member, raw json.RawMessage, there bool) bool,
) string {
	switch s.of.Kind() {
	case reflect.Pointer:
		return s.elem.first(raw, part, lacks)
	case reflect.Struct:
		var values map[string]json.RawMessage
		if len(s.members) == 0 || json.Unmarshal(raw, &values) != nil {
			return ""
		}
		for i := range s.members {
			m := &s.members[i]
			value, there := values[m.name]
			if lacks != nil && lacks(m, value, there) {
				return m.name
			}
			if !there {
				continue
			}
			if path, fault := part(m.shape, value); fault {
				return join(m.name, path)
			}
		}
	case reflect.Slice:
		var values []json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			return ""
		}
		for i, value := range values {
			if path, fault := part(s.elem, value); fault {
				return join("["+strconv.Itoa(i)+"]", path)
			}
		}
	case reflect.Map:
		var values map[string]json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			return ""
		}
		for _, value := range values { // a key may be as sensitive as a value: the path has [*]
			if path, fault := part(s.elem, value); fault {
				return join("[*]", path)
			}
		}
	}
	return ""
}

// join appends a path to another one.
func join(outer, inner string) string {
	if inner == "" || inner[0] == '[' {
		return outer + inner
	}
	return outer + "." + inner
}
