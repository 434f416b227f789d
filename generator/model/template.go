package model

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxTemplate is the longest template in bytes: no key is longer.
const maxTemplate = 512

// pattern is a template before its fields are looked up: the segments between the slashes.
type pattern []patternSegment

// patternSegment alternates literals and fields: literals[0] {fields[0]} literals[1] ...
type patternSegment struct {
	literals []string // one more than fields
	fields   []string
}

// parseTemplate reads a key template such as "{tenant_id}/turn-{turn_id}". Segments are separated by "/" and
// consist of printable ASCII and {field}. An error continues "the template": "is empty".
//
// A rendered field never holds a "/", because strings are percent-encoded. So the segments of a key can be told
// apart, and a segment with one placeholder yields its value when prefix and suffix are removed. Hence two tuples
// of fields never render to the same key as long as injective returns nil.
func parseTemplate(text string) (pattern, error) {
	if text == "" {
		return nil, errors.New("is empty")
	}
	if len(text) > maxTemplate {
		return nil, fmt.Errorf("is longer than %d bytes", maxTemplate)
	}
	var parsed pattern
	for part := range strings.SplitSeq(text, "/") {
		segment, err := parseSegment(part)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, segment)
	}
	return parsed, nil
}

func parseSegment(part string) (patternSegment, error) {
	var segment patternSegment
	if part == "" {
		return segment, errors.New("has an empty segment between slashes")
	}
	for {
		at := strings.IndexAny(part, "{}")
		literal := part
		if at >= 0 {
			literal = part[:at]
		}
		for _, r := range literal {
			if r < ' ' || r > '~' {
				return segment, fmt.Errorf("holds the character %q, which is not printable ASCII", r)
			}
		}
		segment.literals = append(segment.literals, literal)
		if at < 0 {
			return segment, nil
		}
		if part[at] == '{' && (strings.HasSuffix(literal, "$") || strings.HasPrefix(part[at:], "{{")) {
			return segment, fmt.Errorf("must write a placeholder as {field}, not %s", quotedPlaceholder(part[:at], part[at:]))
		}
		if part[at] == '}' {
			return segment, errors.New(`has a "}" without a "{" before it`)
		}
		field, rest, closed := strings.Cut(part[at+1:], "}")
		switch {
		case !closed || strings.Contains(field, "{"):
			return segment, errors.New(`has a "{" without a "}" after it`)
		case field == "":
			return segment, errors.New(`has a "{}" that names no field`)
		}
		segment.fields = append(segment.fields, field)
		part = rest
	}
}

// quotedPlaceholder returns the "${field}" or "{{field}}" that before and part hold, with a suggestion.
func quotedPlaceholder(before, part string) string {
	open, name := "{{", strings.TrimLeft(part, "{")
	if strings.HasSuffix(before, "$") {
		open = "${"
	}
	name, _, _ = strings.Cut(name, "}")
	name = strings.TrimSpace(name)
	if !ValidName(name) {
		return strconv.Quote(open)
	}
	return fmt.Sprintf("%q (did you mean %q?)", open+name+strings.Repeat("}", strings.Count(open, "{")), "{"+name+"}")
}

// injective returns why two tuples of fields may render to the same key, or nil when they never do.
func (p pattern) injective() error {
	some := false
	for _, segment := range p {
		if len(segment.fields) > 1 {
			return fmt.Errorf(`must have a "/" between %q and %q, or two events may get the same key`, "{"+segment.fields[0]+"}",
				"{"+segment.fields[1]+"}")
		}
		some = some || len(segment.fields) == 1
	}
	if !some {
		return errors.New("has no {field}, so all events would get the same key")
	}
	return nil
}

// startsWith reports whether p starts with "{field}/".
func (p pattern) startsWith(field string) bool {
	return len(p) > 1 && len(p[0].fields) == 1 && p[0].fields[0] == field && p[0].literals[0] == "" &&
		p[0].literals[1] == ""
}
