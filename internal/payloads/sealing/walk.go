package sealing

import (
	"encoding/json"
	"strconv"
	"strings"
)

// walk copies a JSON value and replaces the parts of it that its shape has as sealed. The value must be valid JSON.
type walk struct {
	in, out []byte
	path    []segment
	// replace returns what takes the place of a value, and nil to leave out the member of an object that it is.
	replace func(w *walk, value []byte) ([]byte, error)
}

// segment is a step of a path: a member of a struct or a map, or an item of a list.
type segment struct {
	name  string
	index int // of an item; -1 for a member
	inMap bool
}

// pointer returns the path as a JSON Pointer (RFC 6901).
func (w *walk) pointer() string {
	var b strings.Builder
	for _, s := range w.path {
		b.WriteByte('/')
		if s.index >= 0 {
			b.WriteString(strconv.Itoa(s.index))
			continue
		}
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(s.name, "~", "~0"), "/", "~1"))
	}
	return b.String()
}

// String returns the path for people, as "contacts[2].email". A key of a map may be as sensitive as a value, so that it
// is [*].
func (w *walk) String() string {
	var b strings.Builder
	for _, s := range w.path {
		switch {
		case s.index >= 0:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case s.inMap:
			b.WriteString("[*]")
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.name)
		}
	}
	return b.String()
}

// value copies the value at i, which has the shape s, and returns where it ends.
func (w *walk) value(s *Shape, i int) (int, error) {
	end := ends(w.in, i)
	switch {
	case s == nil:
		w.out = append(w.out, w.in[i:end]...)
		return end, nil
	case s.sealed, s.texts && w.in[i] == '"':
		made, err := w.replace(w, w.in[i:end])
		w.out = append(w.out, made...)
		return end, err
	case w.in[i] == '{':
		return w.object(s, i)
	case w.in[i] == '[' && (s.texts || s.each != nil):
		return w.list(s, i)
	}
	w.out = append(w.out, w.in[i:end]...) // null, or what does not fit the type
	return end, nil
}

func (w *walk) object(s *Shape, i int) (int, error) {
	w.out = append(w.out, '{')
	first := true
	for i = space(w.in, i+1); w.in[i] != '}'; i = space(w.in, i) {
		if w.in[i] == ',' {
			i = space(w.in, i+1)
		}
		nameEnds := ends(w.in, i)
		raw := w.in[i:nameEnds]
		name, err := nameOf(raw)
		if err != nil {
			return 0, err
		}
		i = space(w.in, space(w.in, nameEnds)+1) // behind the colon
		inner, inMap := s.items(), s.fields == nil && !s.whole
		if !inMap {
			if inner = s.field(name); inner == nil {
				if other := s.folded(name); other != "" {
					w.path = append(w.path, segment{name: other, index: -1})
					return 0, errOtherCase
				}
			}
		}
		w.path = append(w.path, segment{name: name, index: -1, inMap: inMap})
		before := len(w.out)
		if !first {
			w.out = append(w.out, ',')
		}
		w.out = append(w.out, raw...)
		w.out = append(w.out, ':')
		began := len(w.out)
		if i, err = w.value(inner, i); err != nil {
			return 0, err
		}
		w.path = w.path[:len(w.path)-1]
		if len(w.out) == began {
			w.out = w.out[:before]
		} else {
			first = false
		}
	}
	w.out = append(w.out, '}')
	return i + 1, nil
}

func (w *walk) list(s *Shape, i int) (int, error) {
	w.out = append(w.out, '[')
	n := 0
	for i = space(w.in, i+1); w.in[i] != ']'; i = space(w.in, i) {
		if w.in[i] == ',' {
			w.out = append(w.out, ',')
			i = space(w.in, i+1)
		}
		w.path = append(w.path, segment{index: n})
		var err error
		if i, err = w.value(s.items(), i); err != nil {
			return 0, err
		}
		w.path = w.path[:len(w.path)-1]
		n++
	}
	w.out = append(w.out, ']')
	return i + 1, nil
}

// items returns the shape of the items of a list and the values of a map.
func (s *Shape) items() *Shape {
	if s.texts {
		return s
	}
	return s.each
}

// field returns the shape of a member of an object, nil if nothing is sealed in it.
func (s *Shape) field(name string) *Shape {
	if s.whole && name == Member {
		return wholeMember
	}
	return s.fields[name]
}

// folded returns the field of s that encoding/json would take name for, "" if there is none.
func (s *Shape) folded(name string) string {
	if s.whole && strings.EqualFold(Member, name) {
		return Member
	}
	for field := range s.fields {
		if strings.EqualFold(field, name) {
			return field
		}
	}
	return ""
}

// nameOf returns the name of a member.
func nameOf(raw []byte) (name string, err error) {
	for _, c := range raw {
		if c == '\\' || c >= 0x80 {
			err = json.Unmarshal(raw, &name)
			return name, err
		}
	}
	return string(raw[1 : len(raw)-1]), nil
}

// space returns where the white space at i ends.
func space(in []byte, i int) int {
	for i < len(in) && (in[i] == ' ' || in[i] == '\n' || in[i] == '\t' || in[i] == '\r') {
		i++
	}
	return i
}

// ends returns where the JSON value at i ends.
func ends(in []byte, i int) int {
	depth := 0
	for ; i < len(in); i++ {
		switch in[i] {
		case '"':
			for i++; in[i] != '"'; i++ {
				if in[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			if depth == 0 { // a number or a word
				for i < len(in) && !strings.ContainsRune(",]} \n\t\r:", rune(in[i])) {
					i++
				}
				return i
			}
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
	return i
}
