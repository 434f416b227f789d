package describe

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/model"
)

const dialect2020 = "https://json-schema.org/draft/2020-12/schema"

// SchemaName returns the name of the file with the schema of k.
func SchemaName(k Kind) string { return k.Name() + ".schema.json" }

// BaseURL returns text as a base of JSONSchema: an absolute URL that ends in a slash. "" stays "".
func BaseURL(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return "", nil
	case err != nil || u.Scheme == "" || u.Host == "":
		return "", fmt.Errorf("%q is not an absolute URL: use one such as https://schemas.example.com/events/", text)
	case strings.ContainsAny(text, "?#"):
		return "", fmt.Errorf("%q has a query or a fragment: remove it, because the names of files follow", text)
	}
	return strings.TrimSuffix(text, "/") + "/", nil
}

// JSONSchema returns the JSON Schema (2020-12) of the payload of k. Its $id is base and the name of the file.
func JSONSchema(k Kind, base string) ([]byte, error) {
	s := newSchemas("#/$defs/", false)
	body := s.payload(k)
	root := object{{"$schema", dialect2020}, {"$id", base + SchemaName(k)}}
	root = append(root, body...)
	if defs := s.definitions(); len(defs) > 0 {
		root.add("$defs", defs)
	}
	return document(root)
}

// JSONSchemas returns one JSON Schema (2020-12) with the payloads of kinds among its definitions. It accepts what one
// of them accepts.
func JSONSchemas(kinds []Kind, base string) ([]byte, error) {
	s := newSchemas("#/$defs/", false)
	var payloads, anyOf []any
	for _, k := range kinds {
		payloads = append(payloads, s.payload(k))
		anyOf = append(anyOf, object{{"$ref", "#/$defs/" + k.Name()}})
	}
	defs := object{}
	for i, k := range kinds {
		defs.add(k.Name(), payloads[i])
	}
	root := object{{"$schema", dialect2020}, {"$id", base + "events.schema.json"}, {"anyOf", anyOf}}
	root.add("$defs", append(defs, s.definitions()...))
	return document(root)
}

// schemas makes schemas and collects the shared types that they refer to.
type schemas struct {
	refs string // in front of the name of a shared type
	old  bool   // a dialect that ignores the siblings of $ref
	list []*model.Type
	of   map[*model.Type]*definition
	used map[string]bool
}

type definition struct {
	name string
	body object
}

func newSchemas(refs string, old bool) *schemas {
	return &schemas{refs: refs, old: old, of: make(map[*model.Type]*definition), used: make(map[string]bool)}
}

// definitions returns the shared types, in the order of their first use.
func (s *schemas) definitions() object {
	var defs object
	for _, t := range s.list {
		defs.add(s.of[t].name, s.of[t].body)
	}
	return defs
}

// payload returns the schema of the payload of k.
func (s *schemas) payload(k Kind) object {
	o := object{{"title", k.goName}}
	o.add("description", k.doc())
	if k.sealed {
		return append(o, object{
			{"type", "object"},
			{"properties", object{{"$sealed", s.sealed(s.object(k.fields))}}},
			{"required", []string{"$sealed"}},
			{"additionalProperties", false},
		}...)
	}
	return append(o, s.object(k.fields)...)
}

// sealedForm is what a sealed value looks like: sealed:v1:, the id of the key, and nonce and ciphertext in base64url.
const sealedForm = "^sealed:v1:[A-Za-z0-9._~-]+:[A-Za-z0-9_-]{38,}$"

// sealed returns the schema of a sealed value. What it is when it is opened is an annotation.
func (s *schemas) sealed(opened object) object {
	o := object{{"description", "Sealed with AES-256-GCM."}, {"type", "string"}, {"pattern", sealedForm}}
	if s.old {
		return append(o, member{"x-opened", opened})
	}
	return append(o, member{"contentMediaType", "application/vnd.outboxgen.sealed+json"}, member{"contentSchema", opened})
}

// object returns the schema of a struct. It does not refuse other members: a version may get optional fields.
func (s *schemas) object(fields []*model.Field) object {
	properties, required := object{}, []string{}
	for _, f := range fields {
		properties = append(properties, member{f.Name, s.field(f)})
		if !f.Optional {
			required = append(required, f.Name)
		}
	}
	o := object{{"type", "object"}, {"properties", properties}}
	if len(required) > 0 {
		o.add("required", required)
	}
	return o
}

// field returns the schema of a member.
func (s *schemas) field(f *model.Field) object {
	o := s.value(f, !f.Optional)
	if f.Sealed {
		o = s.sealed(o)
		if f.Doc != "" {
			o[0].value = sentence("", f.Doc) + " Sealed with AES-256-GCM."
		}
		return o
	}
	if doc := sentence("", f.Doc); doc != "" {
		if s.old && o.has("$ref") {
			o = object{{"allOf", []any{o}}}
		}
		o = append(object{{"description", doc}}, slices.DeleteFunc(o, func(m member) bool {
			return m.name == "description"
		})...)
	}
	return o
}

// The zero values that a required field must not have.
const (
	zeroUUID = "00000000-0000-0000-0000-000000000000"
	zeroTime = "0001-01-01T00:00:00Z"
)

// value returns the schema of a value of f. Required says that it is the value of a required field.
func (s *schemas) value(f *model.Field, required bool) object {
	switch f.Type.Kind {
	case model.Named:
		return s.named(f.Type.Type, required)
	case model.List:
		o := object{{"type", "array"}, {"items", s.value(&model.Field{Type: *f.Type.Elem}, false)}}
		return lengths(o, "Items", f)
	case model.Map:
		o := object{{"type", "object"}, {"additionalProperties", s.value(&model.Field{Type: *f.Type.Elem}, false)}}
		return lengths(o, "Properties", f)
	}
	o := scalar(f)
	if not := map[model.Kind]string{model.UUID: zeroUUID, model.Timestamp: zeroTime}[f.Type.Kind]; required && not != "" {
		o.add("not", object{{"const", not}})
	}
	return o
}

// named returns a reference to a shared type.
func (s *schemas) named(t *model.Type, required bool) object {
	d := s.of[t]
	if d == nil {
		d = &definition{name: t.Name}
		for s.used[d.name] { // the type of an older version, which is different today
			d.name = t.GoName
			if s.used[d.name] {
				d.name += "_"
			}
		}
		s.used[d.name] = true
		s.of[t] = d
		s.list = append(s.list, t)
		d.body = object{{"title", t.GoName}}
		d.body.add("description", sentence(t.GoName, t.Doc))
		switch {
		case t.IsEnum():
			values := make([]string, len(t.Values))
			for i, v := range t.Values {
				values[i] = v.Value
			}
			d.body = append(d.body, object{{"type", "string"}, {"enum", values}}...)
		case t.Scalar != nil:
			d.body = append(d.body, s.value(t.Scalar, false)...)
		default:
			d.body = append(d.body, s.object(t.Fields)...)
		}
	}
	ref := object{{"$ref", s.refs + d.name}}
	if !required || t.Scalar == nil || t.Scalar.Type.Kind != model.UUID {
		return ref
	}
	if s.old {
		ref = object{{"allOf", []any{ref}}}
	}
	return append(ref, member{"not", object{{"const", zeroUUID}}})
}

// Forms of the texts that a payload has. A validator need not check "format", but every validator checks a pattern.
const (
	uuidForm   = "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"
	timeForm   = `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+\-][0-9]{2}:[0-9]{2})$`
	dateForm   = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
	base64Form = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
)

func scalar(f *model.Field) object {
	switch f.Type.Kind {
	case model.Bool:
		return object{{"type", "boolean"}}
	case model.Int32:
		return bounds(object{{"type", "integer"}, {"format", "int32"}}, f, int64(math.MinInt32), int64(math.MaxInt32))
	case model.Int64:
		return bounds(object{{"type", "integer"}, {"format", "int64"}}, f, int64(math.MinInt64), int64(math.MaxInt64))
	case model.Duration:
		o := object{{"description", "A duration in nanoseconds."}, {"type", "integer"}, {"format", "int64"}}
		return bounds(o, f, int64(math.MinInt64), int64(math.MaxInt64))
	case model.Float64:
		return bounds(object{{"type", "number"}, {"format", "double"}}, f, nil, nil)
	case model.UUID:
		return object{{"type", "string"}, {"format", "uuid"}, {"pattern", uuidForm}}
	case model.Timestamp:
		return object{{"type", "string"}, {"format", "date-time"}, {"pattern", timeForm}}
	case model.Date:
		return object{{"type", "string"}, {"format", "date"}, {"pattern", dateForm}}
	case model.JSON:
		return object{{"description", "Any JSON value."}}
	case model.Bytes:
		o := object{{"type", "string"}, {"contentEncoding", "base64"}, {"pattern", base64Form}}
		if f.MinLen != nil {
			o.add("minLength", (*f.MinLen+2)/3*4)
		}
		if f.MaxLen != nil {
			o.add("maxLength", (*f.MaxLen+2)/3*4)
		}
		return o
	}
	o := lengths(object{{"type", "string"}}, "Length", f)
	if f.Pattern != "" {
		o.add("pattern", ecmaPattern(f.Pattern))
	}
	return o
}

// bounds adds the bounds of f, or those of its type.
func bounds(o object, f *model.Field, low, high any) object {
	if f.Min != nil {
		low = f.Min
	}
	if f.Max != nil {
		high = f.Max
	}
	o.add("minimum", low)
	o.add("maximum", high)
	return o
}

// lengths adds the bounds of a length: minItems and so on.
func lengths(o object, what string, f *model.Field) object {
	if f.MinLen != nil {
		o.add("min"+what, *f.MinLen)
	}
	if f.MaxLen != nil {
		o.add("max"+what, *f.MaxLen)
	}
	return o
}
