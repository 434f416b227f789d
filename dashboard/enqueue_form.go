package dashboard

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// formField is a field of the form of a topic, for one property of its payload.
type formField struct {
	Name, Label, Hint, Value string
	Kind                     string   // text, number, choice, bool or json
	Choices                  []string // of a choice
	Required                 bool
}

// wholePayload is the field for all of a payload without a schema.
const wholePayload = "payload_json"

// property is what is read of a JSON Schema.
type property struct {
	Ref         string          `json:"$ref"`
	Type        json.RawMessage `json:"type"`
	Enum        []any           `json:"enum"`
	Format      string          `json:"format"`
	Description string          `json:"description"`
	Encoding    string          `json:"contentEncoding"`
	Properties  json.RawMessage `json:"properties"` // of an object
	Required    []string        `json:"required"`
}

// fieldsOf returns the fields for the properties of a schema, in its order. Plain values have a field of their own kind,
// and all others one for JSON.
func fieldsOf(schema json.RawMessage) []formField {
	var s struct {
		Properties json.RawMessage     `json:"properties"`
		Required   []string            `json:"required"`
		Defs       map[string]property `json:"$defs"`
	}
	if json.Unmarshal(schema, &s) != nil || len(s.Properties) == 0 {
		return []formField{{Name: wholePayload, Label: "Payload", Kind: "json", Required: true, Hint: "A JSON object."}}
	}
	fields := []formField{}
	for _, name := range names(s.Properties) {
		var all map[string]property
		if json.Unmarshal(s.Properties, &all) != nil {
			continue
		}
		of := all[name]
		if target, ok := strings.CutPrefix(of.Ref, "#/$defs/"); ok {
			doc := of.Description
			if of = s.Defs[target]; doc != "" {
				of.Description = doc
			}
		}
		f := formField{
			Name: "p_" + name, Label: name, Hint: of.Description, Kind: "json", Required: slices.Contains(s.Required, name),
		}
		var kind string
		_ = json.Unmarshal(of.Type, &kind) // a list of types is for JSON
		switch {
		case len(of.Enum) > 0 && kind == "string":
			f.Kind = "choice"
			for _, v := range of.Enum {
				if text, ok := v.(string); ok {
					f.Choices = append(f.Choices, text)
				}
			}
		case kind == "boolean":
			f.Kind, f.Choices = "bool", []string{"true", "false"}
		case kind == "string":
			f.Kind = "text"
		case kind == "integer", kind == "number":
			f.Kind = "number"
		}
		if f.Hint != "" && !strings.HasSuffix(f.Hint, ".") {
			f.Hint += "."
		}
		f.Hint = strings.TrimSpace(f.Hint + " " + of.form(f.Kind))
		fields = append(fields, f)
	}
	return fields
}

// form says in words what a value of p looks like; "" if its field shows that.
func (p property) form(kind string) string {
	switch {
	case kind == "json" && len(p.Properties) > 0:
		var parts []string
		for _, name := range names(p.Properties) {
			if !slices.Contains(p.Required, name) {
				name += " (optional)"
			}
			parts = append(parts, name)
		}
		return "A JSON object with " + strings.Join(parts, ", ") + "."
	case kind == "json" && string(p.Type) == `"array"`:
		return "A list in JSON, like [1, 2]."
	case kind == "json" && string(p.Type) == `"object"`:
		return "A JSON object."
	case kind == "json":
		return "In JSON: a text has quotes."
	case p.Encoding == "base64":
		return "Bytes in base64."
	case p.Format == "uuid":
		return "A UUID."
	case p.Format == "date-time":
		return "A time like 2026-05-01T12:00:00Z."
	case p.Format == "date":
		return "A date like 2026-05-01."
	case kind == "number" && string(p.Type) == `"integer"`:
		return "A whole number."
	case kind == "number":
		return "A number."
	case p.Format != "" && kind == "text":
		return "Format: " + p.Format + "."
	}
	return ""
}

// names returns the names of the members of a JSON object, in its order.
func names(object json.RawMessage) (list []string) {
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return nil
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return list
		}
		var value json.RawMessage
		if text, ok := name.(string); !ok || d.Decode(&value) != nil {
			return list
		} else {
			list = append(list, text)
		}
	}
	return list
}

// payloadOf returns the payload that a form describes. A field that is empty is left out, and numbers stay as they were
// typed, so that none loses a digit.
func payloadOf(fields []formField, form interface{ Get(string) string }) (json.RawMessage, error) {
	if len(fields) == 1 && fields[0].Name == wholePayload {
		return json.RawMessage(form.Get(wholePayload)), nil
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for _, f := range fields {
		text := form.Get(f.Name)
		if text == "" {
			continue
		}
		value := []byte(strings.TrimSpace(text))
		if f.Kind == "text" || f.Kind == "choice" {
			encoded, err := json.Marshal(text)
			if err != nil {
				return nil, err
			}
			value = encoded
		} else if !json.Valid(value) {
			return nil, bad("%s: %s", f.Label, map[string]string{
				"number": "it is not a number", "bool": "it is neither true nor false", "json": "it is not valid JSON",
			}[f.Kind])
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(f.Label)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
