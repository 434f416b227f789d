// Package mask hides the sensitive fields of payloads from the people who look at events: those with `sensitive: true` in
// the YAML. The library does not know the YAML, so masking is up to what prints a payload.
package mask

import (
	"bytes"
	"encoding/json"

	"github.com/outboxgen/outboxgen/generator/model"
)

// Text replaces a masked value in the JSON of a payload.
const Text = "[masked]"

// Masker masks the payloads of the topics of one YAML. It never changes and may be used by several goroutines. A nil
// Masker knows no topic.
type Masker struct {
	topics map[string]*shape
}

// shape says which parts of a JSON value may be shown. nil means all of it.
type shape struct {
	hidden bool
	fields map[string]*shape // of an object with known members, of which others are masked
	each   *shape            // of the items of a list or the entries of a map
}

// New returns the Masker of m.
func New(m *model.Model) *Masker {
	masker := &Masker{topics: make(map[string]*shape)}
	types := make(map[*model.Type]*shape)
	for _, n := range m.Namespaces {
		for _, t := range n.Topics {
			masker.topics[t.FullName()] = shapeOf(t.Fields, types)
		}
	}
	return masker
}

// shapeOf returns the shape of an object. types holds the shapes of the shared types that are known so far; types are not
// recursive.
func shapeOf(fields []*model.Field, types map[*model.Type]*shape) *shape {
	s := &shape{fields: make(map[string]*shape, len(fields))}
	for _, f := range fields {
		if f.Sensitive {
			s.fields[f.Name] = &shape{hidden: true}
		} else {
			s.fields[f.Name] = shapeOfRef(&f.Type, types)
		}
	}
	return s
}

func shapeOfRef(ref *model.TypeRef, types map[*model.Type]*shape) *shape {
	switch ref.Kind {
	case model.List, model.Map:
		if each := shapeOfRef(ref.Elem, types); each != nil {
			return &shape{each: each}
		}
	case model.Named:
		t := ref.Type
		if known, ok := types[t]; ok {
			return known
		}
		var s *shape
		switch {
		case t.Scalar != nil && t.Scalar.Sensitive:
			s = &shape{hidden: true}
		case t.Scalar == nil && !t.IsEnum():
			s = shapeOf(t.Fields, types)
		}
		types[t] = s
		return s
	}
	return nil
}

// Payload returns payload, of an event of "namespace/topic", with the sensitive values replaced by Text. What the YAML does
// not describe is masked too, because it may be of another version in which it was sensitive: fields that the topic does
// not have, and values that are not of the shape of their type. It returns false if it does not know the topic or if
// payload is not JSON; then nothing of payload should be shown.
func (m *Masker) Payload(topic string, payload json.RawMessage) (json.RawMessage, bool) {
	if m == nil {
		return nil, false
	}
	s, ok := m.topics[topic]
	if !ok || !json.Valid(payload) {
		return nil, false
	}
	var out bytes.Buffer
	if err := write(&out, payload, s); err != nil {
		return nil, false
	}
	return out.Bytes(), true
}

// write copies value to out. Names keep their order, and numbers and text their spelling.
func write(out *bytes.Buffer, value json.RawMessage, s *shape) error {
	value = bytes.TrimSpace(value)
	switch {
	case s == nil:
		out.Write(value)
		return nil
	case s.hidden:
	case value[0] == '{':
		return writeObject(out, value, s)
	case value[0] == '[' && s.each != nil:
		return writeList(out, value, s.each)
	case string(value) == "null":
		out.Write(value)
		return nil
	}
	out.WriteString(`"` + Text + `"`)
	return nil
}

func writeObject(out *bytes.Buffer, value []byte, s *shape) error {
	d := json.NewDecoder(bytes.NewReader(value))
	if _, err := d.Token(); err != nil {
		return err
	}
	out.WriteByte('{')
	for first := true; d.More(); first = false {
		if !first {
			out.WriteByte(',')
		}
		name, err := d.Token()
		if err != nil {
			return err
		}
		text, err := json.Marshal(name)
		if err != nil {
			return err
		}
		var member json.RawMessage
		if err := d.Decode(&member); err != nil {
			return err
		}
		inner := s.each
		if s.fields != nil {
			known, ok := s.fields[name.(string)]
			if inner = known; !ok {
				inner = &shape{hidden: true}
			}
		}
		out.Write(text)
		out.WriteByte(':')
		if err := write(out, member, inner); err != nil {
			return err
		}
	}
	out.WriteByte('}')
	return nil
}

func writeList(out *bytes.Buffer, value []byte, each *shape) error {
	d := json.NewDecoder(bytes.NewReader(value))
	if _, err := d.Token(); err != nil {
		return err
	}
	out.WriteByte('[')
	for first := true; d.More(); first = false {
		if !first {
			out.WriteByte(',')
		}
		var item json.RawMessage
		if err := d.Decode(&item); err != nil {
			return err
		}
		if err := write(out, item, each); err != nil {
			return err
		}
	}
	out.WriteByte(']')
	return nil
}
