// Package payloadcheck checks whether the JSON of a payload fits its topic in the YAML: its fields, their types and
// their rules. The generated code checks the same before an enqueue. The command line needs it for payloads that people
// edit.
package payloadcheck

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/payload"
	"github.com/outboxgen/outboxgen/seal"
)

// Check returns what is wrong with data as a payload of t as it is stored, or nil: what is sealed must be in the sealed
// form. It names fields, and never quotes a value.
func Check(t *model.Topic, data json.RawMessage) payload.FieldErrors {
	if fault := oneValue(data); fault != "" {
		return wrong("", "json", fault)
	}
	if t.Sealed {
		return whole(data)
	}
	return object("", t.Fields, data)
}

// whole checks a payload that is sealed as a whole.
func whole(data json.RawMessage) payload.FieldErrors {
	var members map[string]json.RawMessage
	if !begins(data, '{') || json.Unmarshal(data, &members) != nil || len(members) != 1 {
		return wrong("", "sealed", notSealed)
	}
	return sealed("", members["$sealed"])
}

const notSealed = "is not in the sealed form: only code with the keys can enqueue it, and nobody can edit what is sealed"

// sealed checks that a value is in the sealed form, which is all that can be said without a key.
func sealed(where string, data json.RawMessage) payload.FieldErrors {
	s, ok := text(data)
	if _, err := seal.KeyID(s); !ok || err != nil {
		return wrong(where, "sealed", notSealed)
	}
	return nil
}

// Changed returns the fields of t that its keys, its tenant or its entity come from and whose values differ between two
// payloads. An event keeps those columns.
func Changed(t *model.Topic, before, after json.RawMessage) payload.FieldErrors {
	of := make(map[string]string)
	add := func(f *model.Field, what string) {
		if f != nil && of[f.Name] == "" {
			of[f.Name] = what
		}
	}
	add(t.Tenant, "the tenant")
	addAll := func(template *model.Template, what string) {
		if template != nil {
			for _, s := range template.Segments {
				add(s.Field, what)
			}
		}
	}
	addAll(t.DedupeKey, "the dedupe key")
	addAll(t.PartitionKey, "the partition key")
	if t.Entity != nil {
		add(t.Entity.Version, "the entity")
		addAll(t.Entity.ID, "the entity")
	}
	var was, is map[string]json.RawMessage
	if json.Unmarshal(before, &was) != nil || json.Unmarshal(after, &is) != nil {
		return nil
	}
	var found payload.FieldErrors
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if !bytes.Equal(compact(was[name]), compact(is[name])) {
			found = append(found, payload.FieldError{
				Field: name, Rule: "key", Message: "belongs to " + of[name] + " and must stay as it was",
			})
		}
	}
	return found
}

func compact(v json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Compact(&b, v) != nil {
		return v
	}
	return b.Bytes()
}

func wrong(field, rule, message string) payload.FieldErrors {
	return payload.FieldErrors{{Field: field, Rule: rule, Message: message}}
}

// oneValue says why data is not one JSON value whose objects have each name once, or "".
func oneValue(data []byte) string {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := skipValue(d); errors.Is(err, errTwice) {
		return err.Error()
	} else if err != nil {
		return "is not valid JSON"
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "is more than one JSON value"
	}
	return ""
}

var errTwice = errors.New("has an object with the same name twice")

func skipValue(d *json.Decoder) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('{'):
		names := make(map[json.Token]bool)
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return err
			}
			if names[name] {
				return errTwice
			}
			names[name] = true
			if err := skipValue(d); err != nil {
				return err
			}
		}
	case json.Delim('['):
		for d.More() {
			if err := skipValue(d); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	_, err = d.Token()
	return err
}

func object(where string, fields []*model.Field, data json.RawMessage) payload.FieldErrors {
	var members map[string]json.RawMessage
	if !begins(data, '{') || json.Unmarshal(data, &members) != nil {
		return wrong(where, "type", "is not an object")
	}
	var found payload.FieldErrors
	for _, f := range fields {
		v, there := members[f.Name]
		delete(members, f.Name)
		name := join(where, f.Name)
		switch {
		case there && f.Sealed:
			found = append(found, sealed(name, v)...)
		case there && !isNull(v):
			found = append(found, value(name, f, v)...)
		case f.Optional:
		case there && f.Type.Kind == model.JSON: // null is a value
		default:
			found = append(found, wrong(name, "required", "is not set")...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		found = append(found, wrong(join(where, name), "unknown", "is not a field in the YAML")...)
	}
	return found
}

func join(where, name string) string {
	if where == "" {
		return name
	}
	return where + "." + name
}

func begins(data json.RawMessage, c byte) bool {
	data = bytes.TrimSpace(data)
	return len(data) > 0 && data[0] == c
}

func isNull(data json.RawMessage) bool { return string(bytes.TrimSpace(data)) == "null" }

// value checks the value of a field that is present: its type, then its bounds.
func value(where string, f *model.Field, data json.RawMessage) payload.FieldErrors {
	switch f.Type.Kind {
	case model.String:
		return textValue(where, f, data)
	case model.Bool:
		if s := string(bytes.TrimSpace(data)); s != "true" && s != "false" {
			return wrong(where, "type", "is not true or false")
		}
		return nil
	case model.Int32:
		return intValue(where, f, data, 32)
	case model.Int64, model.Duration:
		return intValue(where, f, data, 64)
	case model.Float64:
		n, err := strconv.ParseFloat(string(bytes.TrimSpace(data)), 64)
		if err != nil || begins(data, '"') || math.IsInf(n, 0) {
			return wrong(where, "type", "is not a number of 64 bits")
		}
		return bounds(where, n, f)
	case model.JSON:
		return length(where, "byte", len(compact(data)), f)
	case model.Bytes:
		s, ok := text(data)
		raw, err := base64.StdEncoding.DecodeString(s)
		if !ok || err != nil {
			return wrong(where, "type", "is not a string in base64")
		}
		return length(where, "byte", len(raw), f)
	case model.List, model.Map:
		return elements(where, f, data)
	case model.Named:
		return named(where, f, data)
	}
	return scalar(where, f, data)
}

func textValue(where string, f *model.Field, data json.RawMessage) payload.FieldErrors {
	s, ok := text(data)
	if !ok {
		return wrong(where, "type", "is not a string")
	}
	found := payload.Text(where, s)
	if f.MinLen != nil {
		found = append(found, payload.MinLen(where, s, *f.MinLen)...)
	}
	if f.MaxLen != nil {
		found = append(found, payload.MaxLen(where, s, *f.MaxLen)...)
	}
	if f.Pattern != "" {
		if re, err := regexp.Compile(f.Pattern); err == nil {
			found = append(found, payload.Match(where, s, re)...)
		}
	}
	return found
}

func intValue(where string, f *model.Field, data json.RawMessage, bits int) payload.FieldErrors {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(data)), 10, bits)
	if err != nil {
		return wrong(where, "type", fmt.Sprintf("is not a whole number of %d bits", bits))
	}
	if f.Type.Kind == model.Duration {
		return bounds(where, time.Duration(n), durations(f))
	}
	return bounds(where, n, f)
}

// elements checks a list or a map. A key of a map may be as sensitive as a value, so it is not named.
func elements(where string, f *model.Field, data json.RawMessage) payload.FieldErrors {
	var items []json.RawMessage
	place := func(i int) string { return fmt.Sprintf("%s[%d]", where, i) }
	if f.Type.Kind == model.Map {
		var entries map[string]json.RawMessage
		if !begins(data, '{') || json.Unmarshal(data, &entries) != nil {
			return wrong(where, "type", "is not an object")
		}
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			items = append(items, entries[key])
		}
		place = func(int) string { return where + "[*]" }
	} else if json.Unmarshal(data, &items) != nil {
		return wrong(where, "type", "is not a list")
	}
	found := length(where, "item", len(items), f)
	for i, item := range items {
		if found = append(found, element(place(i), *f.Type.Elem, item)...); len(found) >= maxFound {
			break
		}
	}
	return found
}

// maxFound is about how many faults of one list are named.
const maxFound = 8

func element(where string, ref model.TypeRef, data json.RawMessage) payload.FieldErrors {
	if isNull(data) && ref.Kind != model.JSON {
		return wrong(where, "type", "is null")
	}
	return value(where, &model.Field{Type: ref, Optional: true}, data) // the zero UUID is allowed there
}

func named(where string, f *model.Field, data json.RawMessage) payload.FieldErrors {
	t := f.Type.Type
	switch {
	case t.IsEnum():
		s, ok := text(data)
		allowed := make([]string, len(t.Values))
		for i, v := range t.Values {
			allowed[i] = v.Value
		}
		if !ok {
			return wrong(where, "type", "is not a string")
		}
		var invalid *payload.ValidationError
		if errors.As(payload.Enum(t.Name, s, allowed...), &invalid) {
			return wrong(where, "enum", invalid.Fields[0].Message)
		}
		return nil
	case t.Scalar != nil:
		of := *t.Scalar
		of.Optional = f.Optional
		return value(where, &of, data)
	}
	return object(where, t.Fields, data)
}

// scalar checks the kinds that are strings of some form.
func scalar(where string, f *model.Field, data json.RawMessage) payload.FieldErrors {
	s, ok := text(data)
	switch f.Type.Kind {
	case model.UUID:
		id, err := uuid.Parse(s)
		if !ok || err != nil {
			return wrong(where, "type", "is not a UUID")
		}
		if !f.Optional {
			return payload.RequiredUUID(where, id)
		}
	case model.Timestamp:
		var moment time.Time
		if !ok || json.Unmarshal(data, &moment) != nil {
			return wrong(where, "type", "is not a time like 2026-05-01T12:00:00Z")
		}
		if !f.Optional {
			if found := payload.RequiredTime(where, moment); found != nil {
				return found
			}
		}
		return payload.Instant(where, moment)
	case model.Date:
		d, err := payload.ParseDate(s)
		if !ok || err != nil || d.Validate() != nil {
			return wrong(where, "type", "is not a date like 2026-05-01")
		}
	}
	return nil
}

func text(data json.RawMessage) (s string, ok bool) {
	return s, begins(data, '"') && json.Unmarshal(data, &s) == nil
}

// durations returns f with the bounds of a duration as such, which is how people write them.
func durations(f *model.Field) *model.Field {
	d := *f
	for _, bound := range []*any{&d.Min, &d.Max} {
		if n, ok := (*bound).(int64); ok {
			*bound = time.Duration(n)
		}
	}
	return &d
}

func bounds[N cmp.Ordered](where string, n N, f *model.Field) payload.FieldErrors {
	if bound, ok := f.Min.(N); ok && n < bound {
		return payload.Min(where, n, bound)
	}
	if bound, ok := f.Max.(N); ok {
		return payload.Max(where, n, bound)
	}
	return nil
}

// length checks the bounds of a length. An empty optional value counts as absent.
func length(where, unit string, n int, f *model.Field) payload.FieldErrors {
	least, most := payload.MinItems, payload.MaxItems
	if unit == "byte" {
		least, most = payload.MinBytes, payload.MaxBytes
	}
	if f.MinLen != nil && (n > 0 || !f.Optional) {
		if found := least(where, n, *f.MinLen); found != nil {
			return found
		}
	}
	if f.MaxLen != nil {
		return most(where, n, *f.MaxLen)
	}
	return nil
}
