package outbox

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// plain decodes a JSON object into a struct in one pass. json.Unmarshal goes over the text twice and more, and was
// most of what a listener spent on an event.
//
// It decodes what is plainly right, and as json.Unmarshal does. A field whose type or text is anything else goes to
// json.Unmarshal, and so does the whole text when an object has an unknown key, a key twice, or an error: what is valid
// is for one to decide.
type plain struct{ fields []plainField } // in the order of jsonb: shorter names first

type plainField struct {
	name  string
	index int
	read  plainRead
}

// plainRead sets v to the value at the beginning of text and returns its length, or 0 when it is not plain.
type plainRead func(text []byte, v reflect.Value) int

// plainMost is how many fields of a struct are counted.
const plainMost = 64

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// plainOf returns what decodes t, and nil for what only json.Unmarshal does.
func plainOf(t reflect.Type) *plain {
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(jsonUnmarshaler) || reflect.PointerTo(t).Implements(textUnmarshaler) {
		return nil
	}
	p := &plain{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous, strings.Contains(options, "string"):
			return nil // fields that hide one another, and numbers in quotes
		case !f.IsExported(), f.Tag.Get("json") == "-":
			continue
		case strings.ContainsFunc(name, func(r rune) bool {
			return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}):
			return nil // some tags are no names
		}
		p.fields = append(p.fields, plainField{name: cmp.Or(name, f.Name), index: i, read: plainReadOf(f.Type)})
	}
	slices.SortFunc(p.fields, func(a, b plainField) int {
		return cmp.Or(len(a.name)-len(b.name), strings.Compare(a.name, b.name))
	})
	twice := slices.CompactFunc(slices.Clone(p.fields), func(a, b plainField) bool { return a.name == b.name })
	if len(twice) < len(p.fields) || len(p.fields) > plainMost {
		return nil
	}
	return p
}

// decode sets v to the object text. When it returns false v is zero.
func (p *plain) decode(text []byte, v reflect.Value) bool {
	if p == nil {
		return false
	}
	if n := p.read(text, v); n > 0 && plainSpace(text[n:]) == len(text)-n {
		return true
	}
	v.SetZero()
	return false
}

// read is a plainRead.
func (p *plain) read(text []byte, v reflect.Value) int {
	i := plainSpace(text)
	if !plainAt(text, i, '{') {
		return 0
	}
	i++
	i += plainSpace(text[i:])
	if plainAt(text, i, '}') {
		return i + 1
	}
	var seen uint64
	for next := 0; ; {
		key, n := plainString(text[i:])
		f := p.find(key, next)
		if n == 0 || f < 0 || seen&(1<<f) != 0 {
			return 0
		}
		seen |= 1 << f
		next = f + 1
		i += n
		i += plainSpace(text[i:])
		if !plainAt(text, i, ':') {
			return 0
		}
		i++
		i += plainSpace(text[i:])
		field := &p.fields[f]
		to := v.Field(field.index)
		n = 0
		if field.read != nil {
			n = field.read(text[i:], to)
		}
		if n == 0 {
			if n = plainExtent(text[i:]); !unmarshalField(text[i:i+n], to) {
				return 0
			}
		}
		i += n
		i += plainSpace(text[i:])
		switch {
		case plainAt(text, i, '}'):
			return i + 1
		case !plainAt(text, i, ','):
			return 0
		}
		i++
		i += plainSpace(text[i:])
	}
}

// unmarshalField has json.Unmarshal set a field of which nothing may be left but what it does itself.
func unmarshalField(text []byte, v reflect.Value) bool {
	v.SetZero()
	return json.Unmarshal(text, v.Addr().Interface()) == nil
}

// find returns the place of the field that key names, most likely next, and -1 if none does.
func (p *plain) find(key []byte, next int) int {
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

// plainReadOf returns what reads values of t, and nil if that is for json.Unmarshal.
func plainReadOf(t reflect.Type) plainRead {
	switch {
	case t == reflect.TypeFor[json.Number]():
		return nil
	case reflect.PointerTo(t).Implements(jsonUnmarshaler):
		return plainJSON
	case t.Kind() == reflect.Pointer:
		if e := t.Elem(); e.Kind() != reflect.Pointer && e.Kind() != reflect.Struct { // which may hold itself
			return plainPointer(e, plainReadOf(e))
		}
		return nil
	case reflect.PointerTo(t).Implements(textUnmarshaler):
		return plainText
	}
	switch t.Kind() {
	case reflect.String:
		return func(text []byte, v reflect.Value) int {
			s, n := plainString(text)
			if n > 0 {
				v.SetString(string(s))
			}
			return n
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return plainInt
	case reflect.Bool:
		return plainBool
	case reflect.Struct:
		if p := plainOf(t); p != nil {
			return p.read
		}
	}
	return nil
}

// plainPointer reads into a new value what read reads.
func plainPointer(t reflect.Type, read plainRead) plainRead {
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

func plainText(text []byte, v reflect.Value) int {
	s, n := plainString(text)
	if n == 0 || v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText(s) != nil {
		return 0
	}
	return n
}

func plainJSON(text []byte, v reflect.Value) int {
	_, n := plainString(text)
	if n == 0 || v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(text[:n]) != nil {
		return 0
	}
	return n
}

func plainInt(text []byte, v reflect.Value) int {
	n := plainExtent(text)
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

func plainBool(text []byte, v reflect.Value) int {
	n := plainExtent(text)
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

// plainString returns what is between the quotes at the beginning of text and the length with them; 0 when there is no
// string, or one that says something else than it is written.
func plainString(text []byte) (s []byte, n int) {
	if !plainAt(text, 0, '"') {
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

// plainExtent returns the length of the value at the beginning of text if it is one.
func plainExtent(text []byte) int {
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

// plainSpace returns how much white space text begins with.
func plainSpace(text []byte) int {
	for i, c := range text {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return i
		}
	}
	return len(text)
}

func plainAt(text []byte, i int, c byte) bool { return i < len(text) && text[i] == c }
