// Package sealing seals and opens the sealed parts of JSON payloads: which parts these are by the Go type of the
// payload, and how their values get to the keys of a keyring and back.
package sealing

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// The struct tag of a field that is sealed.
const (
	tag    = "outbox"
	sealed = "sealed"
)

// Member is the only member of the payload of a topic that is sealed as a whole. No field has such a name.
const Member = "$sealed"

// Shape says which parts of a JSON value are sealed. nil means none. It does not change, and may be used concurrently.
type Shape struct {
	sealed bool
	texts  bool              // each text is, for what does not know the type
	whole  bool              // the member Member is
	fields map[string]*Shape // of an object, those that are sealed or hold something sealed
	each   *Shape            // of the items of a list and the values of a map
}

// Whole is the shape of a payload that is sealed as a whole, as it is stored.
var Whole = &Shape{whole: true}

// wholeMember is the shape of the member Member. Neither it nor Whole is a map, so that programs that seal nothing have no
// code to make one.
var wholeMember = &Shape{sealed: true}

// known holds what Of has returned for each type.
var known sync.Map // from reflect.Type to *answer

type answer struct {
	shape *Shape
	err   error
}

// Of returns the shape of the JSON of t: the fields of structs with the tag `outbox:"sealed"` are sealed. It is an error
// if one of them is inside a type of which encoding/json does not write the fields: an embedded struct, or one that
// encodes itself.
func Of(t reflect.Type) (*Shape, error) {
	found, ok := known.Load(t)
	if !ok {
		s := make(shapes)
		made := &answer{shape: s.of(t).pruned(make(map[*Shape]bool))}
		if made.err = s.lost(t, make(map[reflect.Type]bool)); made.err != nil {
			made.shape = nil
		}
		found, _ = known.LoadOrStore(t, made)
	}
	a := found.(*answer)
	return a.shape, a.err
}

// writesItself reports whether t encodes itself as JSON.
func writesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// shapes are those of the types that are known so far. A type may contain itself.
type shapes map[reflect.Type]*Shape

func (s shapes) of(t reflect.Type) *Shape {
	if of, ok := s[t]; ok {
		return of
	}
	if writesItself(t) {
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Struct:
		made := &Shape{fields: make(map[string]*Shape)}
		s[t] = made
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.IsExported() || f.Anonymous || f.Tag.Get("json") == "-" {
				continue
			}
			if name == "" {
				name = f.Name
			}
			if isSealed(f) {
				made.fields[name] = &Shape{sealed: true}
			} else if inner := s.of(f.Type); inner != nil {
				made.fields[name] = inner
			}
		}
		return made
	case reflect.Slice, reflect.Array, reflect.Map:
		made := &Shape{}
		s[t] = made
		made.each = s.of(t.Elem())
		return made
	}
	return nil
}

func isSealed(f reflect.StructField) bool { return f.Tag.Get(tag) == sealed }

// holds reports whether something inside s is sealed. seen are the shapes that are being looked at.
func (s *Shape) holds(seen map[*Shape]bool) bool {
	if s == nil || seen[s] {
		return false
	}
	if s.sealed {
		return true
	}
	seen[s] = true
	for _, f := range s.fields {
		if f.holds(seen) {
			return true
		}
	}
	return s.each.holds(seen)
}

// pruned returns s without the parts in which nothing is sealed, nil if that is all of it.
func (s *Shape) pruned(done map[*Shape]bool) *Shape {
	if !s.holds(make(map[*Shape]bool)) {
		return nil
	}
	if s.sealed || done[s] {
		return s
	}
	done[s] = true
	for name, f := range s.fields {
		if s.fields[name] = f.pruned(done); s.fields[name] == nil {
			delete(s.fields, name)
		}
	}
	s.each = s.each.pruned(done)
	return s
}

// lost returns an error if a field is sealed of which the shape knows nothing.
func (s shapes) lost(t reflect.Type, seen map[reflect.Type]bool) error {
	if seen[t] {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return s.lost(t.Elem(), seen)
	case reflect.Struct:
	default:
		return nil
	}
	itself := writesItself(t)
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case isSealed(f) && itself:
			return fmt.Errorf("field %s of %s is sealed, but the type encodes itself: its values cannot be found", f.Name, t)
		case isSealed(f) && (f.Anonymous || !f.IsExported() || f.Tag.Get("json") == "-"):
			return fmt.Errorf("field %s of %s is sealed, but is embedded or not encoded: give it a name of its own", f.Name, t)
		case f.Anonymous && hasSealed(f.Type, make(map[reflect.Type]bool)):
			return fmt.Errorf("field %s of %s is embedded and has sealed fields: give it a name of its own", f.Name, t)
		case itself && hasSealed(f.Type, make(map[reflect.Type]bool)):
			return fmt.Errorf("field %s of %s has sealed fields, but %s encodes itself: its values cannot be found", f.Name, t, t)
		}
		if err := s.lost(f.Type, seen); err != nil {
			return err
		}
	}
	return nil
}

// hasSealed reports whether a field is sealed anywhere inside t.
func hasSealed(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return hasSealed(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); isSealed(f) || hasSealed(f.Type, seen) {
				return true
			}
		}
	}
	return false
}
