package masking

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

// The struct tags of fields that are not shown. A sealed one is not shown either: its sealed form says nothing, and the
// value may be there before it is sealed.
const (
	tag       = "outbox"
	sensitive = "sensitive"
	sealed    = "sealed"
)

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// Of returns the shape of the JSON of t. The fields of structs with the tag `outbox:"sensitive"` or `outbox:"sealed"` are hidden, and so are
// the members of embedded structs.
func Of(t reflect.Type) *Shape { return shapes{}.of(t) }

// shapes are those of the types that are known so far. A type may contain itself.
type shapes map[reflect.Type]*Shape

func (known shapes) of(t reflect.Type) *Shape {
	if s, ok := known[t]; ok {
		return s
	}
	switch pointer := reflect.PointerTo(t); {
	case pointer.Implements(textMarshaler):
		return Plain
	case pointer.Implements(marshaler):
		return nil
	}
	switch t.Kind() {
	case reflect.Interface:
		return nil
	case reflect.Pointer:
		return known.of(t.Elem())
	case reflect.Struct:
		s := Object(make(map[string]*Shape))
		known[t] = s
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && !f.Anonymous {
				known.add(s, f)
			}
		}
		return s
	case reflect.Slice, reflect.Array, reflect.Map:
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
			return Plain // base64
		}
		s := Each(nil)
		known[t] = s
		s.each = known.of(t.Elem())
		return s
	}
	return Plain
}

// add adds a field to the shape of its struct.
func (known shapes) add(s *Shape, f reflect.StructField) {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case f.Tag.Get("json") == "-":
		return
	case name == "":
		name = f.Name
	}
	if of := f.Tag.Get(tag); of == sensitive || of == sealed {
		s.fields[name] = Hidden
		return
	}
	s.fields[name] = known.of(f.Type)
}
