// Package sample makes valid payloads of topics, as JSON.
package sample

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/generator/model"
)

// Payloads returns examples of a payload with these fields: one with every field, one without the optional fields if
// there are any, and one per further value of its largest enum. Equal fields give equal examples.
func Payloads(fields []*model.Field) []json.RawMessage {
	examples := []json.RawMessage{Payload(fields, &fixed{})}
	if optional(fields) {
		examples = append(examples, Payload(fields, &fixed{absent: true}))
	}
	for i := 1; i < enumSize(fields); i++ {
		examples = append(examples, Payload(fields, &fixed{value: i}))
	}
	return examples
}

// Chooser decides what a payload holds.
type Chooser interface {
	// Present says whether an optional field is there.
	Present() bool
	// Value returns which of n values a scalar has. The first is typical; the second and third are the smallest and the
	// largest, or the shortest and the longest.
	Value(n int) int
	// Enum returns which of n values an enum has.
	Enum(n int) int
}

type fixed struct {
	absent bool
	value  int
}

func (f *fixed) Present() bool  { return !f.absent }
func (f *fixed) Value(int) int  { return 0 }
func (f *fixed) Enum(n int) int { return f.value % n }

// Payload returns a payload with these fields.
func Payload(fields []*model.Field, c Chooser) json.RawMessage {
	var b strings.Builder
	object(&b, fields, c)
	return json.RawMessage(b.String())
}

func object(b *strings.Builder, fields []*model.Field, c Chooser) {
	b.WriteByte('{')
	first := true
	for _, f := range fields {
		if f.Optional && !c.Present() {
			continue
		}
		if !first {
			b.WriteByte(',')
		}
		first = false
		b.WriteString(strconv.Quote(f.Name))
		b.WriteByte(':')
		value(b, f, c)
	}
	b.WriteByte('}')
}

// value writes a value of f, which may be an element without a name.
func value(b *strings.Builder, f *model.Field, c Chooser) {
	t := f.Type
	switch {
	case t.Kind == model.List, t.Kind == model.Map:
		opening, closing := "[", "]"
		if t.Kind == model.Map {
			opening, closing = "{", "}"
		}
		b.WriteString(opening)
		sizes := lengths(f, 2, 8)
		if f.Optional { // an empty one is left out
			sizes = lengths(f, 2, 8, 1)
		}
		for i := range sizes[c.Value(len(sizes))] {
			if i > 0 {
				b.WriteByte(',')
			}
			if t.Kind == model.Map {
				b.WriteString(`"key ` + strconv.Itoa(i+1) + `":`)
			}
			value(b, &model.Field{Type: *t.Elem}, c)
		}
		b.WriteString(closing)
	case t.Type == nil:
		scalar(b, f, c)
	case t.Type.IsEnum():
		b.WriteString(quote(t.Type.Values[c.Enum(len(t.Type.Values))].Value))
	case t.Type.Scalar != nil:
		scalar(b, t.Type.Scalar, c)
	default:
		object(b, t.Type.Fields, c)
	}
}

func scalar(b *strings.Builder, f *model.Field, c Chooser) {
	values := scalars(f)
	b.WriteString(values[c.Value(len(values))])
}

// scalars returns values of f as JSON: a typical one, the smallest and the largest first.
func scalars(f *model.Field) []string {
	switch f.Type.Kind {
	case model.Bool:
		return []string{"true", "false"}
	case model.Int32:
		return whole(f, math.MinInt32, math.MaxInt32, 42)
	case model.Int64:
		return whole(f, math.MinInt64, math.MaxInt64, 9007199254740993) // beyond what a float64 holds
	case model.Duration:
		return whole(f, math.MinInt64, math.MaxInt64, 1500000000)
	case model.Float64:
		low, high := -1.5e9, 1.5e9
		if v, ok := f.Min.(float64); ok {
			low, high = v, max(high, v)
		}
		if v, ok := f.Max.(float64); ok {
			low, high = min(low, v), v
		}
		var values []string
		for _, v := range []float64{min(max(2.5, low), high), low, high, low/2 + high/2} {
			encoded, _ := json.Marshal(v) // a finite number always encodes
			values = append(values, string(encoded))
		}
		return values
	case model.UUID:
		return quoted("0190d5a5-7c2e-7d6b-8d3c-9b1f6a2e4c70", uuid.Max.String(), "00000000-0000-0000-0000-000000000001")
	case model.Timestamp:
		return quoted("2026-01-02T15:04:05.678901Z", "0001-01-02T00:00:00Z", "9999-12-31T23:59:59Z",
			"2026-01-02T15:04:05+02:00")
	case model.Date:
		return quoted("2026-01-02", "0001-01-01", "9999-12-31")
	case model.JSON:
		return []string{`{"any":[1,"text",null,true]}`, `{}`, `"text"`, `7`, `[]`}
	case model.Bytes:
		sizes := lengths(f, 5, 64)
		if f.Optional { // an empty one is left out
			sizes = lengths(f, 5, 64, 1)
		}
		var values []string
		for _, n := range sizes {
			values = append(values, quote(base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\x00\xffA", n/3+1))[:n])))
		}
		return values
	}
	return texts(f)
}

func whole(f *model.Field, low, high, typical int64) []string {
	if v, ok := f.Min.(int64); ok {
		low = v
	}
	if v, ok := f.Max.(int64); ok {
		high = v
	}
	var values []string
	for _, v := range []int64{min(max(typical, low), high), low, high, min(max(0, low), high), min(max(-1, low), high)} {
		values = append(values, strconv.FormatInt(v, 10))
	}
	return values
}

// lengths returns lengths that f allows: a typical one, the shortest and the longest, which is at most most unless the
// shortest is longer.
func lengths(f *model.Field, typical, most int, least ...int) []int {
	low, high := 0, most
	for _, n := range least {
		low = n
	}
	if f.MinLen != nil {
		low = max(low, *f.MinLen)
	}
	if f.MaxLen != nil && (*f.MaxLen < most || *f.MaxLen <= 1000) {
		high = *f.MaxLen
	}
	high = max(high, low)
	return []int{min(max(typical, low), high), low, high, low + (high-low)/2}
}

func texts(f *model.Field) []string {
	var values []string
	if f.Pattern != "" {
		for _, text := range matching(f) {
			values = append(values, quote(text))
		}
		return values
	}
	sizes := lengths(f, 9, 40)
	for i, piece := range []string{"some text ", "~", "é", "a\"b\\<世\u2028"} {
		runes := []rune(strings.Repeat(piece, sizes[i]/len([]rune(piece))+1))
		values = append(values, quote(string(runes[:sizes[i]])))
	}
	return values
}

func quoted(texts ...string) []string {
	values := make([]string, len(texts))
	for i, text := range texts {
		values[i] = quote(text)
	}
	return values
}

func quote(text string) string {
	encoded, _ := json.Marshal(text) // a string always encodes
	return string(encoded)
}

// optional reports whether a struct of these fields has an optional field, at any depth.
func optional(fields []*model.Field) bool {
	for _, f := range fields {
		if f.Optional {
			return true
		}
		if t := core(f.Type); t != nil && optional(t.Fields) {
			return true
		}
	}
	return false
}

// enumSize returns the number of values of the largest enum in a struct of these fields, at any depth.
func enumSize(fields []*model.Field) int {
	size := 0
	for _, f := range fields {
		if t := core(f.Type); t != nil {
			size = max(size, len(t.Values), enumSize(t.Fields))
		}
	}
	return size
}

func core(r model.TypeRef) *model.Type {
	for r.Elem != nil {
		r = *r.Elem
	}
	return r.Type
}
