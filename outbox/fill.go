package outbox

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// filler finds the required lists, maps and bytes of a payload that are nil. json.Marshal writes them as null, which
// other languages and strict readers do not take for an empty list.
type filler struct {
	kind   reflect.Kind // Struct, Slice, Map or Pointer
	fields []fillField  // of a Struct
	elem   *filler      // of the others
}

// fillField is a field of a struct that may have to be filled, or something inside it.
type fillField struct {
	index    int
	required bool    // nil becomes empty
	inner    *filler // nil when there is nothing to fill inside
}

// payloadEncoding is what is done with the payloads of a type around json.Marshal.
type payloadEncoding struct {
	filler *filler // nil if there is nothing to fill
	sealed string  // a field that is to be sealed by its struct tag; "" if there is none
}

// encodings holds the encoding of each type of payload.
var encodings sync.Map // from reflect.Type to *payloadEncoding

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// filled returns p, a pointer to a payload, or a pointer to a copy that has empty lists, maps and bytes where the
// payload has nil ones in fields that are not omitted when empty. The payload itself, which belongs to the caller, does
// not change. It also returns the name of a field that is to be sealed by its struct tag, "" if there is none.
func filled(p any) (_ any, sealed string) {
	v := reflect.ValueOf(p).Elem()
	known, ok := encodings.Load(v.Type())
	if !ok {
		e := &payloadEncoding{filler: fillerOf(v.Type(), nil), sealed: sealedField(v.Type(), nil)}
		known, _ = encodings.LoadOrStore(v.Type(), e)
	}
	e := known.(*payloadEncoding)
	if e.filler == nil || !e.filler.wanted(v) {
		return p, e.sealed
	}
	copied := reflect.New(v.Type())
	copied.Elem().Set(v)
	e.filler.fill(copied.Elem())
	return copied.Interface(), e.sealed
}

// fillerOf returns the filler of t, nil if there is nothing to fill. within are the types that t is part of. Nothing is
// filled in a type that contains itself; no generated type does.
func fillerOf(t reflect.Type, within []reflect.Type) *filler {
	if slices.Contains(within, t) || writesItself(t) {
		return nil
	}
	within = append(slices.Clip(within), t)
	f := &filler{kind: t.Kind()}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			field := t.Field(i)
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			if !field.IsExported() || name == "-" {
				continue
			}
			kind := field.Type.Kind()
			required := (kind == reflect.Slice || kind == reflect.Map) && !strings.Contains(options, "omit") &&
				!writesItself(field.Type)
			if inner := fillerOf(field.Type, within); required || inner != nil {
				f.fields = append(f.fields, fillField{i, required, inner})
			}
		}
		if f.fields != nil {
			return f
		}
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if f.elem = fillerOf(t.Elem(), within); f.elem != nil {
			return f
		}
	}
	return nil
}

// sealedField returns the name of a field inside t that has the struct tag `outbox:"sealed"`, "" if there is none. within
// are the types that t is part of.
func sealedField(t reflect.Type, within []reflect.Type) string {
	if slices.Contains(within, t) {
		return ""
	}
	within = append(slices.Clip(within), t)
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return sealedField(t.Elem(), within)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Tag.Get("outbox") == "sealed" {
				return f.Name
			}
			if name := sealedField(f.Type, within); name != "" {
				return name
			}
		}
	}
	return ""
}

// writesItself reports whether t encodes itself as JSON.
func writesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(jsonMarshaler) || p.Implements(textMarshaler)
}

// wanted reports whether there is something to fill in v.
func (f *filler) wanted(v reflect.Value) bool {
	switch f.kind {
	case reflect.Struct:
		for i := range f.fields {
			field := &f.fields[i]
			inside := v.Field(field.index)
			if field.required && inside.IsNil() || field.inner != nil && field.inner.wanted(inside) {
				return true
			}
		}
	case reflect.Pointer:
		return !v.IsNil() && f.elem.wanted(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			if f.elem.wanted(v.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		if v.Len() == 0 {
			return false
		}
		for entries := v.MapRange(); entries.Next(); {
			if f.elem.wanted(entries.Value()) {
				return true
			}
		}
	}
	return false
}

// fill fills v, which can be set, and copies what v refers to before it changes it.
func (f *filler) fill(v reflect.Value) {
	if !f.wanted(v) {
		return
	}
	switch f.kind {
	case reflect.Struct:
		for i := range f.fields {
			field := &f.fields[i]
			switch inside := v.Field(field.index); {
			case field.required && inside.IsNil() && inside.Kind() == reflect.Map:
				inside.Set(reflect.MakeMap(inside.Type()))
			case field.required && inside.IsNil():
				inside.Set(reflect.MakeSlice(inside.Type(), 0, 0))
			case field.inner != nil:
				field.inner.fill(inside)
			}
		}
	case reflect.Pointer:
		pointer := reflect.New(v.Type().Elem())
		pointer.Elem().Set(v.Elem())
		f.elem.fill(pointer.Elem())
		v.Set(pointer)
	case reflect.Slice:
		items := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(items, v)
		for i := range items.Len() {
			f.elem.fill(items.Index(i))
		}
		v.Set(items)
	case reflect.Map:
		entries := reflect.MakeMapWithSize(v.Type(), v.Len())
		for each := v.MapRange(); each.Next(); {
			entry := reflect.New(v.Type().Elem()).Elem()
			entry.Set(each.Value())
			f.elem.fill(entry)
			entries.SetMapIndex(each.Key(), entry)
		}
		v.Set(entries)
	}
}
