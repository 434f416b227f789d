package lock

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/generator/model"
)

// header starts a lock.
const header = "# Written by outboxgen freeze. Commit it.\nlock: \"1\"\n"

// Render returns l as a file. Equal locks give equal bytes.
func Render(l *Lock) []byte {
	var w writer
	w.WriteString(header)
	if len(l.Topics) == 0 {
		w.line(0, "topics: {}")
		return []byte(w.String())
	}
	w.line(0, "topics:")
	for _, t := range l.Topics {
		w.line(2, "%s:", t.Name)
		for _, f := range t.Versions {
			w.line(4, "%d:", f.Version)
			w.line(6, "sum: %q", Sum(t.Name, f))
			w.version(f)
		}
	}
	return []byte(w.String())
}

// Sum returns the checksum of a version of a topic.
func Sum(topic string, f *model.Frozen) string {
	var w writer
	w.line(0, "%s %d", topic, f.Version)
	w.version(f)
	sum := sha256.Sum256([]byte(w.String()))
	return hex.EncodeToString(sum[:8])
}

type writer struct{ strings.Builder }

func (w *writer) line(indent int, format string, args ...any) {
	w.WriteString(strings.Repeat(" ", indent))
	fmt.Fprintf(w, format, args...)
	w.WriteByte('\n')
}

func (w *writer) version(f *model.Frozen) {
	const in = 6
	t := f.Topic
	w.line(in, "delivery: %s", t.Delivery)
	if t.Sealed {
		w.line(in, "sealed: true")
	}
	if t.Tenant != nil {
		w.line(in, "tenant: %s", word(t.Tenant.Name))
	}
	if t.DedupeKey != nil {
		w.line(in, "dedupe_key: %s", strconv.QuoteToASCII(t.DedupeKey.Text))
	}
	if t.PartitionKey != nil {
		w.line(in, "partition_key: %s", strconv.QuoteToASCII(t.PartitionKey.Text))
	}
	if e := t.Entity; e != nil {
		version := ""
		if e.Version != nil {
			version = ", version: " + word(e.Version.Name)
		}
		w.line(in, "entity: {type: %s, id: %s%s}", word(e.Type), strconv.QuoteToASCII(e.ID.Text), version)
	}
	if p := t.Publish; p != nil {
		rest := ""
		if p.Key != nil {
			rest = ", key: " + strconv.QuoteToASCII(p.Key.Text)
		}
		if p.Tombstone {
			rest += ", tombstone: true"
		}
		name, to := "", strconv.QuoteToASCII(p.Destination)
		if !p.Broker.BuiltIn() {
			name = "name: " + word(string(p.Broker)) + ", "
		}
		if p.Field != nil {
			to = word(p.Field.Name)
		}
		w.line(in, "publish: {%s: {%s%s: %s}%s}", p.BrokerKey(), name, p.DestinationKey(), to, rest)
	}
	if t.Publish != nil && t.Publish.WireName != "" {
		w.line(in, "wire_name: %s", strconv.QuoteToASCII(t.Publish.WireName))
	}
	if len(t.Fields) == 0 {
		w.line(in, "payload: {}")
	} else {
		w.line(in, "payload:")
		w.fields(in+2, t.Fields)
	}
	if len(f.Types) == 0 {
		return
	}
	w.line(in, "types:")
	types := slices.Clone(f.Types)
	slices.SortFunc(types, func(a, b *model.Type) int { return strings.Compare(a.Name, b.Name) })
	for _, t := range types {
		w.sharedType(in+2, t)
	}
}

func (w *writer) fields(indent int, fields []*model.Field) {
	for _, f := range fields {
		text := f.Type.String()
		if f.Optional {
			text += "?"
		}
		attributes := []string{"type: " + word(text)}
		if name := f.GoOverride(); name != "" {
			attributes = append(attributes, "go: "+word(name))
		}
		if f.Sealed {
			attributes = append(attributes, "sensitive: sealed")
		} else if f.Sensitive {
			attributes = append(attributes, "sensitive: true")
		}
		attributes = append(attributes, bounds(f)...)
		if len(attributes) == 1 {
			w.line(indent, "%s: %s", word(f.Name), plainType(text))
		} else {
			w.line(indent, "%s: {%s}", word(f.Name), strings.Join(attributes, ", "))
		}
	}
}

func (w *writer) sharedType(indent int, t *model.Type) {
	var attributes []string
	if name := t.GoOverride(); name != "" {
		attributes = append(attributes, "go: "+word(name))
	}
	switch {
	case t.IsEnum():
		values := make([]string, len(t.Values))
		for i, v := range t.Values {
			values[i] = word(v.Value)
			if name := t.ConstantOverride(v); name != "" {
				values[i] = fmt.Sprintf("{value: %s, go: %s}", word(v.Value), word(name))
			}
		}
		attributes = append(attributes, "enum: ["+strings.Join(values, ", ")+"]")
	case t.Scalar != nil:
		attributes = append(attributes, "scalar: "+string(t.Scalar.Type.Kind))
		attributes = append(attributes, bounds(t.Scalar)...)
	default:
		w.line(indent, "%s:", word(t.Name))
		for _, a := range attributes {
			w.line(indent+2, "%s", a)
		}
		w.line(indent+2, "fields:")
		w.fields(indent+4, t.Fields)
		return
	}
	w.line(indent, "%s: {%s}", word(t.Name), strings.Join(attributes, ", "))
}

// bounds returns the bounds of f, as keys of a mapping.
func bounds(f *model.Field) []string {
	var keys []string
	number := func(key string, v any) {
		switch v := v.(type) {
		case int64:
			if f.Type.Kind == model.Duration {
				keys = append(keys, fmt.Sprintf("%s: %q", key, time.Duration(v)))
			} else {
				keys = append(keys, fmt.Sprintf("%s: %d", key, v))
			}
		case float64:
			keys = append(keys, key+": "+strconv.FormatFloat(v, 'g', -1, 64))
		}
	}
	length := func(key string, n *int) {
		if n != nil {
			keys = append(keys, fmt.Sprintf("%s: %d", key, *n))
		}
	}
	number("min", f.Min)
	number("max", f.Max)
	length("min_len", f.MinLen)
	length("max_len", f.MaxLen)
	if f.Pattern != "" {
		keys = append(keys, "pattern: "+strconv.QuoteToASCII(f.Pattern))
	}
	return keys
}

var (
	plainWord = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)
	// notText are the words that YAML reads as something other than text.
	notText = map[string]bool{
		"null": true, "true": true, "false": true, "yes": true, "no": true, "on": true, "off": true, "y": true, "n": true,
	}
)

// word returns text as YAML: in quotes unless it is a plain word.
func word(text string) string {
	if plainWord.MatchString(text) && !notText[strings.ToLower(text)] {
		return text
	}
	return strconv.QuoteToASCII(text)
}

// plainType returns a type as the value of a key that is not in braces, where a ? needs no quotes.
func plainType(text string) string {
	if name, optional := strings.CutSuffix(text, "?"); optional && word(name) == name {
		return text
	}
	return word(text)
}
