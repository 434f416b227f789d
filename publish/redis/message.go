package redis

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/publish"
)

// Names of fields.
const (
	bodyField       = "data"
	contentType     = "content-type"
	attributePrefix = "ce_"
)

// fieldsOf encodes an event as the names and values of an entry's fields, in a fixed order, and returns their size.
// They have a copy of the payload, because the command may still be on its way when Publish has returned.
func fieldsOf(encoder publish.Encoder, o publish.Outgoing) (fields []any, size int, err error) {
	m, err := encoder.Encode(o)
	if err != nil {
		return nil, 0, err
	}
	add := func(name, value string) {
		fields = append(fields, name, value)
		size += len(name) + len(value)
	}
	fields = make([]any, 0, 2*(len(m.Attributes)+len(m.Headers)+2))
	for _, name := range slices.Sorted(maps.Keys(m.Attributes)) {
		add(attributePrefix+name, m.Attributes[name])
	}
	if m.ContentType != "" {
		add(contentType, m.ContentType)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if !withheld(name) {
			add(name, m.Headers[name])
		}
	}
	size += len(bodyField) + len(m.Body)
	return append(fields, bodyField, bytes.Clone(m.Body)), size, nil
}

// withheld reports whether a header of an event is left out, because its name has a meaning for consumers.
func withheld(name string) bool {
	name = strings.ToLower(name)
	return name == bodyField || name == contentType || strings.HasPrefix(name, attributePrefix)
}
