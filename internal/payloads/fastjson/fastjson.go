// Package fastjson decodes a JSON object into a struct in one pass. json.Unmarshal reads the text twice and more, and
// was most of what a listener spent on an event.
//
// It decodes what is plainly right, and as json.Unmarshal does. A field whose type or text is anything else goes to
// json.Unmarshal, and so does the whole text when an object has an unknown key, a key twice, or an error:
// json.Unmarshal alone decides what is valid.
//
// A strict decoder also refuses what is incomplete, as Shape has it, and passes over keys that the struct does not
// have.
package fastjson

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Decoder decodes one type of struct. It may be used by any number of goroutines.
type Decoder struct {
	fields   []field // in the order of jsonb: shorter names first
	strict   bool
	required uint64 // the bits of required fields
}

type field struct {
	name  string
	index int
	read  reader

	// In a strict decoder:
	required bool
	raw      bool   // any JSON, null too
	zero     zero   // what it refuses
	shape    *Shape // of a field in which something may be incomplete
}

// reader sets v to the value at the beginning of text and returns its length, or 0 when it is not plain.
type reader func(text []byte, v reflect.Value) int

// mostFields is how many fields of a struct are counted.
const mostFields = 64

var (
	Unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// Of returns what decodes t, and nil for what only json.Unmarshal does.
func Of(t reflect.Type) *Decoder { return of(t, false) }

// StrictOf returns a strict decoder of t, and nil for what only json.Unmarshal does.
func StrictOf(t reflect.Type) *Decoder { return of(t, true) }

func of(t reflect.Type, strict bool) *Decoder {
	if !isGenerated(t) {
		return nil
	}
	p := &Decoder{strict: strict}
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case f.Anonymous:
			return nil // fields that hide one another
		case !f.IsExported(), f.Tag.Get("json") == "-":
			continue
		}
		read, plain := fieldOf(f, strict)
		if !plain {
			return nil
		}
		p.fields = append(p.fields, read)
	}
	slices.SortFunc(p.fields, func(a, b field) int {
		return cmp.Or(len(a.name)-len(b.name), strings.Compare(a.name, b.name))
	})
	twice := slices.CompactFunc(slices.Clone(p.fields), func(a, b field) bool { return a.name == b.name })
	if len(twice) < len(p.fields) || len(p.fields) > mostFields {
		return nil
	}
	for i := range p.fields {
		if p.fields[i].required {
			p.required |= 1 << i
		}
	}
	return p
}

// fieldOf returns what reads a field. plain is false if its tag means more than its name.
func fieldOf(f reflect.StructField, strict bool) (read field, plain bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	if strings.Contains(options, "string") || strings.ContainsFunc(name, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		return read, false // numbers in quotes; some tags are not names
	}
	read = field{name: cmp.Or(name, f.Name), index: f.Index[0], read: readOf(f.Type, strict)}
	if strict {
		if read.required = name != "" && !strings.Contains(options, "omitempty"); read.required {
			read.zero = zeroOf(f.Type)
		}
		shape := ShapeOf(f.Type)
		if read.raw = shape.isJSON(); shape.walk {
			read.shape = shape
		}
	}
	return read, true
}

// Decode sets v to the object text. When it returns false v is zero.
func (p *Decoder) Decode(text []byte, v reflect.Value) bool {
	if p == nil {
		return false
	}
	if n := p.read(text, v); n > 0 && space(text[n:]) == len(text)-n {
		return true
	}
	v.SetZero()
	return false
}

// read is a reader.
func (p *Decoder) read(text []byte, v reflect.Value) int {
	i := token(text, 0, '{')
	if i == 0 {
		return 0
	}
	if at(text, i, '}') && p.required == 0 {
		return i + 1
	}
	var seen uint64
	for next := 0; ; {
		key, n := quoted(text[i:])
		if n == 0 {
			return 0
		}
		if i = token(text, i+n, ':'); i == 0 {
			return 0
		}
		switch f := p.find(key, next); {
		case f >= 0 && seen&(1<<f) == 0:
			n = p.readField(&p.fields[f], text[i:], v)
			seen |= 1 << f
			next = f + 1
		case f < 0 && p.strict && !p.resembles(key):
			if n = extent(text[i:]); !json.Valid(text[i : i+n]) {
				return 0
			}
		default:
			return 0
		}
		if n == 0 {
			return 0
		}
		i += n
		i += space(text[i:])
		if at(text, i, '}') && seen&p.required == p.required {
			return i + 1
		}
		if i = token(text, i, ','); i == 0 {
			return 0
		}
	}
}

// readField sets a field of v to the value at the beginning of text. It returns the length of the value, or 0 when it
// is for json.Unmarshal to say what is wrong.
func (p *Decoder) readField(f *field, text []byte, v reflect.Value) (n int) {
	to := v.Field(f.index)
	if f.read != nil {
		n = f.read(text, to)
	}
	if n == 0 {
		if n = extent(text); !unmarshalField(text[:n], to) || p.strict && !f.complete(text[:n]) {
			return 0
		}
	}
	if f.zero != zeroFine && f.zero.of(to) {
		return 0
	}
	return n
}

// complete reports whether text, which decodes into f, has all that a strict decoder wants of it.
func (f *field) complete(text []byte) bool {
	if bytes.Equal(text, null) {
		return !f.required || f.raw
	}
	if f.shape == nil {
		return true
	}
	_, fault := f.shape.Incomplete(text)
	return fault == ""
}

// resembles reports whether json.Unmarshal would take key for the name of a field.
func (p *Decoder) resembles(key []byte) bool {
	for i := range p.fields {
		if strings.EqualFold(string(key), p.fields[i].name) {
			return true
		}
	}
	return false
}

// unmarshalField has json.Unmarshal set a field of which nothing may be left but what it does itself.
func unmarshalField(text []byte, v reflect.Value) bool {
	v.SetZero()
	return json.Unmarshal(text, v.Addr().Interface()) == nil
}

// find returns the place of the field that key names, most likely next, and -1 if none does.
func (p *Decoder) find(key []byte, next int) int {
	if next < len(p.fields) && string(key) == p.fields[next].name {
		return next
	}
	for i := range p.fields {
		if string(key) == p.fields[i].name {
			return i
		}
	}
	return -1
}

// readOf returns what reads values of t, and nil if that is for json.Unmarshal.
func readOf(t reflect.Type, strict bool) reader {
	switch {
	case t == reflect.TypeFor[json.Number]():
		return nil
	case reflect.PointerTo(t).Implements(Unmarshaler):
		return readJSON
	case t.Kind() == reflect.Pointer:
		if e := t.Elem(); e.Kind() != reflect.Pointer && e.Kind() != reflect.Struct { // which may hold itself
			return pointer(e, readOf(e, strict))
		}
		return nil
	case reflect.PointerTo(t).Implements(textUnmarshaler):
		return readText
	}
	switch t.Kind() {
	case reflect.String:
		return func(text []byte, v reflect.Value) int {
			s, n := quoted(text)
			if n > 0 {
				v.SetString(string(s))
			}
			return n
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return readInt
	case reflect.Bool:
		return readBool
	case reflect.Struct:
		if p := of(t, strict); p != nil {
			return p.read
		}
	case reflect.Slice:
		if e := t.Elem(); strict && e.Kind() != reflect.Pointer && e.Kind() != reflect.Uint8 {
			read := sync.OnceValue(func() reader { return readOf(e, strict) }) // later, because e may hold lists of itself
			return list(t, func(text []byte, v reflect.Value) int {
				if read := read(); read != nil {
					return read(text, v)
				}
				return 0
			})
		}
	}
	return nil
}

// list reads items that read reads, except empty values of an enum.
func list(t reflect.Type, read reader) reader {
	refused := zeroOf(t.Elem())
	if refused != zeroEnum {
		refused = zeroFine
	}
	return func(text []byte, v reflect.Value) int {
		i := token(text, 0, '[')
		if i == 0 {
			return 0
		}
		v.Set(reflect.MakeSlice(t, 0, 0))
		if at(text, i, ']') {
			return i + 1
		}
		for n := 0; ; n++ {
			if v.Cap() == n {
				v.Grow(max(n, 4))
			}
			v.SetLen(n + 1)
			item := v.Index(n)
			item.SetZero()
			took := read(text[i:], item)
			if took == 0 || refused.of(item) {
				return 0
			}
			i += took
			i += space(text[i:])
			if at(text, i, ']') {
				return i + 1
			}
			if i = token(text, i, ','); i == 0 {
				return 0
			}
		}
	}
}

// pointer reads into a new value what read reads.
func pointer(t reflect.Type, read reader) reader {
	if read == nil {
		return nil
	}
	return func(text []byte, v reflect.Value) int {
		to := reflect.New(t)
		n := read(text, to.Elem())
		if n > 0 {
			v.Set(to)
		}
		return n
	}
}

func readText(text []byte, v reflect.Value) int {
	s, n := quoted(text)
	if n == 0 || v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText(s) != nil {
		return 0
	}
	return n
}

func readJSON(text []byte, v reflect.Value) int {
	_, n := quoted(text)
	if n == 0 || v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(text[:n]) != nil {
		return 0
	}
	return n
}

func readInt(text []byte, v reflect.Value) int {
	n := extent(text)
	if n == 0 || n > 20 {
		return 0
	}
	digits := bytes.TrimPrefix(text[:n], []byte("-"))
	if len(digits) == 0 || digits[0] < '0' || digits[0] > '9' || digits[0] == '0' && len(digits) > 1 {
		return 0 // ParseInt takes a plus and zeros in front
	}
	i, err := strconv.ParseInt(string(text[:n]), 10, 64)
	if err != nil || v.OverflowInt(i) {
		return 0
	}
	v.SetInt(i)
	return n
}

func readBool(text []byte, v reflect.Value) int {
	n := extent(text)
	switch string(text[:n]) {
	case "true":
		v.SetBool(true)
	case "false":
		v.SetBool(false)
	default:
		return 0
	}
	return n
}

// quoted returns what is between the quotes at the beginning of text and the length with them; 0 when there is no
// string, or one that says something else than it is written.
func quoted(text []byte) (s []byte, n int) {
	if !at(text, 0, '"') {
		return nil, 0
	}
	ascii := true
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			if s = text[1:i]; !ascii && !utf8.Valid(s) {
				return nil, 0
			}
			return s, i + 1
		case c == '\\' || c < ' ':
			return nil, 0
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, 0
}

// extent returns the length of the value at the beginning of text if it is one.
func extent(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']', ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
			if c == '}' || c == ']' {
				depth--
			}
		}
	}
	return len(text)
}

// space returns how much white space text begins with.
func space(text []byte) int {
	for i, c := range text {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return i
		}
	}
	return len(text)
}

func at(text []byte, i int, c byte) bool { return i < len(text) && text[i] == c }

// token returns what is behind c, which comes next at i, and the white space around it; 0 if something else comes.
func token(text []byte, i int, c byte) int {
	i += space(text[i:])
	if !at(text, i, c) {
		return 0
	}
	i++
	return i + space(text[i:])
}
