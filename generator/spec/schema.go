package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// JSONSchema returns the JSON Schema (2020-12) of an outbox.yaml, for editors. It is made from the key tables that
// Decode reads, so both know the same keys. The rules of the model check more than a schema can. The bytes are the
// same on every call.
func JSONSchema() ([]byte, error) {
	defs := &definitions{}
	root := file.schema(defs)
	document := object{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"$id", "https://github.com/outboxgen/outboxgen/outbox.schema.json"},
		{"title", "outbox.yaml"},
	}
	document = append(document, root...)
	document = append(document, member{"$defs", defs.object})
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(document); err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	return out.Bytes(), nil
}

// object is a JSON object that keeps the order of its members.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON encodes o in its own order.
func (o object) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	out.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := encoder.Encode(m.name); err != nil {
			return nil, err
		}
		out.WriteByte(':')
		if err := encoder.Encode(m.value); err != nil {
			return nil, err
		}
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// definitions collects the records that a schema refers to.
type definitions struct {
	object object
}

// body returns the schema of r in place.
func (r *record[T]) body(defs *definitions) object {
	properties := object{}
	var needed []string
	for _, k := range r.keys {
		property := append(object{{"description", k.doc}}, k.schema(defs)...)
		properties = append(properties, member{k.name, property})
		if k.required {
			needed = append(needed, k.name)
		}
	}
	s := object{{"description", r.doc}, {"type", "object"}, {"properties", properties}}
	if needed != nil {
		s = append(s, member{"required", needed})
	}
	if r.oneOf != nil {
		choice := make([]object, len(r.oneOf))
		for i, name := range r.oneOf {
			choice[i] = object{{"required", []string{name}}}
		}
		keyword := "oneOf"
		if r.several {
			keyword = "anyOf"
		}
		s = append(s, member{keyword, choice})
	}
	return append(s, member{"additionalProperties", false})
}

// schema returns a reference to the definition of r, which the first call adds. The record of the file itself
// needs no definition.
func (r *record[T]) schema(defs *definitions) object {
	if r.name == file.name {
		return r.body(defs)
	}
	known := slices.ContainsFunc(defs.object, func(m member) bool { return m.name == r.name })
	if !known {
		defs.object = append(defs.object, member{r.name, nil})
		at := len(defs.object) - 1
		defs.object[at].value = r.body(defs)
	}
	return object{{"$ref", "#/$defs/" + r.name}}
}
