package editor

import (
	"fmt"
	"strings"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// scalarDocs say what the built-in types hold.
var scalarDocs = map[model.Kind]string{
	model.String:    "Text in UTF-8. In Go a string.",
	model.Bool:      "true or false. In Go a bool.",
	model.Int32:     "A whole number of 32 bits. In Go an int32.",
	model.Int64:     "A whole number of 64 bits, exact in JSON too. In Go an int64.",
	model.Float64:   "A number with a fraction, of 64 bits. In Go a float64. Not for keys.",
	model.UUID:      "A UUID. In Go a uuid.UUID of github.com/google/uuid.",
	model.Timestamp: "A point in time, in UTC. In Go a time.Time. Not for keys.",
	model.Date:      "A day without a time. In Go a payload.Date.",
	model.Duration:  "A length of time. In Go a time.Duration. Not for keys.",
	model.Bytes:     "Bytes, base64 in JSON. In Go a []byte. Not for keys.",
	model.JSON:      "Any JSON. In Go a json.RawMessage. Not for keys.",
}

// docOf returns the doc of a declaration.
func docOf(n *node) string {
	if doc := n.child("doc"); doc != nil {
		return model.PlainText(doc.text)
	}
	return ""
}

// fieldType returns the type of a field as it is written.
func fieldType(n *node) string {
	if n.kind == scalar {
		return n.text
	}
	if t := n.child("type"); t != nil {
		return t.text
	}
	return ""
}

// isSensitive reports whether a field is kept from people, which a sealed one is, too.
func isSensitive(field *node) bool {
	n := field.child("sensitive")
	return isTrue(n) || n != nil && n.text == "sealed"
}

func isTrue(n *node) bool { return n != nil && strings.EqualFold(n.text, "true") }

// typeForm says what a shared type is.
func typeForm(n *node) string {
	switch {
	case n.child("enum") != nil:
		return "enum"
	case n.child("scalar") != nil:
		return "scalar " + n.child("scalar").text
	}
	return "struct"
}

// enumValues returns the values of an enum as they are written.
func enumValues(n *node) (values []string) {
	enum := n.child("enum")
	if enum == nil {
		return nil
	}
	for _, item := range enum.children {
		if value := item.child("value"); value != nil {
			item = value
		}
		values = append(values, item.text)
	}
	return values
}

// keyable reports whether a field can be part of a key, and returns what it holds: a built-in type, or Named for an
// enum.
func (x *index) keyable(f *symbol) (model.Kind, bool) {
	name, optional := strings.CutSuffix(fieldType(f.node), "?")
	if optional || isTrue(f.node.child("optional")) || isSensitive(f.node) {
		return "", false
	}
	kind := model.Kind(name)
	if t := x.symbols[idOf(spec.TypeThing, "", name)]; t != nil {
		if t.node.child("enum") != nil {
			return model.Named, true
		}
		if s := t.node.child("scalar"); s != nil {
			kind = model.Kind(s.text)
		}
	}
	switch kind {
	case model.UUID, model.String, model.Int32, model.Int64, model.Date:
		return kind, true
	}
	return kind, false
}

// rendered returns what a key of a template looks like, with examples of values.
func rendered(t *model.Template) string {
	var b strings.Builder
	for i, s := range t.Segments {
		if i > 0 {
			b.WriteByte('/')
		}
		b.WriteString(s.Prefix)
		if s.Field != nil {
			b.WriteString(exampleOf(s.Field))
		}
		b.WriteString(s.Suffix)
	}
	return b.String()
}

// exampleOf returns a value of a field as keys have it.
func exampleOf(f *model.Field) string {
	switch f.Type.Base() {
	case model.UUID:
		return "6f1c2d3e-0a4b-4c5d-8e9f-a1b2c3d4e5f6"
	case model.Int32, model.Int64:
		return "42"
	case model.Date:
		return "2026-01-31"
	case model.Named:
		if f.Type.Type != nil && f.Type.Type.IsEnum() {
			return f.Type.Type.Values[0].Value
		}
	}
	return "text"
}

// hasText reports whether a template has a field of type string, whose values are encoded.
func hasText(t *model.Template) bool {
	for _, s := range t.Segments {
		if s.Field != nil && s.Field.Type.Base() == model.String {
			return true
		}
	}
	return false
}

// describeKey says what a key of a template looks like.
func describeKey(t *model.Template) string {
	if t == nil {
		return ""
	}
	text := fmt.Sprintf("Rendered: `%s`", rendered(t))
	if hasText(t) {
		text += "\n\nIn a string, `%` and `/` are percent-encoded."
	}
	return text
}
