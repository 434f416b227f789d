package sample

import (
	"encoding/json"
	"strconv"

	"github.com/outboxgen/outboxgen/generator/model"
)

// sealed is an example of the sealed form. No key opens it.
const sealed = `"sealed:v1:example:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"`

// Stored returns payload, which Payload has made of these fields, as an event stores it: with the sealed form in place of
// what is sealed. whole says that the payload is sealed as a whole.
func Stored(fields []*model.Field, whole bool, payload json.RawMessage) json.RawMessage {
	if whole {
		return json.RawMessage(`{"$sealed":` + sealed + `}`)
	}
	if !model.HasSealed(fields) {
		return payload
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(payload, &members) != nil {
		return payload
	}
	out := []byte{'{'}
	for _, f := range fields {
		v, there := members[f.Name]
		if !there {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(strconv.AppendQuote(out, f.Name), ':')
		if f.Sealed {
			out = append(out, sealed...)
		} else {
			out = append(out, storedValue(&f.Type, v)...)
		}
	}
	return append(out, '}')
}

func storedValue(t *model.TypeRef, v json.RawMessage) json.RawMessage {
	switch {
	case t.Kind == model.List:
		var items []json.RawMessage
		if json.Unmarshal(v, &items) != nil {
			return v
		}
		for i := range items {
			items[i] = storedValue(t.Elem, items[i])
		}
		return encoded(items, v)
	case t.Kind == model.Map:
		var entries map[string]json.RawMessage
		if json.Unmarshal(v, &entries) != nil {
			return v
		}
		for name := range entries {
			entries[name] = storedValue(t.Elem, entries[name])
		}
		return encoded(entries, v)
	case t.Type != nil && t.Type.Fields != nil:
		return Stored(t.Type.Fields, false, v)
	}
	return v
}

func encoded(v any, otherwise json.RawMessage) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		return otherwise
	}
	return text
}
