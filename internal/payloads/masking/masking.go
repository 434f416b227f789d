// Package masking says which parts of a JSON value may be shown, and masks the others. A payload is masked by the shape
// of its topic, which comes from the model of the YAML or from the Go type of the payload.
package masking

import (
	"bytes"
	"encoding/json"
)

// masked replaces a value that is not shown.
const masked = `"[masked]"`

// Shape says which parts of a JSON value may be shown. nil means all of it. It must not be changed after its first use,
// and may then be used by several goroutines.
type Shape struct {
	kind   kind
	fields map[string]*Shape // of an object
	each   *Shape            // of the items of a list, and of the values of a map
}

type kind int

const (
	hidden kind = iota
	plain
	object
	each
)

// Hidden shows nothing of a value, and Plain shows text, numbers, booleans and null.
var (
	Hidden = &Shape{kind: hidden}
	Plain  = &Shape{kind: plain}
)

// Object shows the members of an object, each as fields says, and masks all others.
func Object(fields map[string]*Shape) *Shape { return &Shape{kind: object, fields: fields} }

// Each shows each item of a list and each value of a map as s says.
func Each(s *Shape) *Shape { return &Shape{kind: each, each: s} }

// Mask returns value with "[masked]" in place of everything that is not shown. A value that does not have the shape is
// masked too. It returns false if value is not JSON.
func (s *Shape) Mask(value json.RawMessage) (json.RawMessage, bool) {
	if !json.Valid(value) {
		return nil, false
	}
	var out bytes.Buffer
	if err := s.write(&out, value); err != nil {
		return nil, false
	}
	return out.Bytes(), true
}

// write copies value to out. Names keep their order, and numbers and text their spelling.
func (s *Shape) write(out *bytes.Buffer, value json.RawMessage) error {
	value = bytes.TrimSpace(value)
	composed, isNull := value[0] == '{' || value[0] == '[', string(value) == "null"
	switch {
	case s == nil, s.kind == plain && !composed, s.kind != hidden && isNull:
		out.Write(value)
		return nil
	case value[0] == '{' && (s.kind == object || s.kind == each):
		return s.writeObject(out, value)
	case value[0] == '[' && s.kind == each:
		return s.writeList(out, value)
	}
	out.WriteString(masked)
	return nil
}

// member returns the shape of the member of an object.
func (s *Shape) member(name string) *Shape {
	if s.kind == each {
		return s.each
	}
	if known, ok := s.fields[name]; ok {
		return known
	}
	return Hidden
}

func (s *Shape) writeObject(out *bytes.Buffer, value []byte) error {
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
		out.Write(text)
		out.WriteByte(':')
		if err := s.member(name.(string)).write(out, member); err != nil { // the decoder returns each name as a string
			return err
		}
	}
	out.WriteByte('}')
	return nil
}

func (s *Shape) writeList(out *bytes.Buffer, value []byte) error {
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
		if err := s.each.write(out, item); err != nil {
			return err
		}
	}
	out.WriteByte(']')
	return nil
}
