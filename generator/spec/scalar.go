package spec

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// Patterns that the decoder, the model and the schema share.
const (
	namePattern     = `^[a-z][a-z0-9_]{0,40}$`
	goNamePattern   = `^[A-Z][A-Za-z0-9]{0,63}$`
	durationPattern = `^(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`
	ratePattern     = `^[0-9]+/(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`
	typePattern     = `^(\[\]|map\[string\])*[a-z][a-z0-9_]{0,40}\??$`
	dirPattern      = `^(\.\./)*[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`
	topicPattern    = `^[a-z][a-z0-9_]{0,40}/[a-z][a-z0-9_]{0,40}$`
	headerPattern   = `^[a-z][a-z0-9-]{0,60}$`
	wirePattern     = `^[A-Za-z0-9]([A-Za-z0-9._:/-]{0,126}[A-Za-z0-9])?$`
	kafkaPattern    = `^[a-zA-Z0-9._-]{1,249}$`
	natsPattern     = `^[^\s.*>]+(\.[^\s.*>]+)*$`
	customPattern   = `^[!-~]{1,500}$`
	amqpPattern     = `^/(queues/[^\s/]+|exchanges/[^\s/]+(/[^\s/]+)?)$`
	redisPattern    = `^[^\s]{1,249}$`
	enumPattern     = `^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`
)

var (
	nameSyntax     = regexp.MustCompile(namePattern)
	durationSyntax = regexp.MustCompile(durationPattern)
	rateSyntax     = regexp.MustCompile(ratePattern)
)

// text is any text, or text that the schema describes with a pattern and the model checks.
type text struct {
	pattern string
	example string // shown in the message about a value that is not text
	refers  Thing  // what it names; "" for nothing
}

func (t *text) decode(d *decoder, n *node, at place, into *Value[string]) {
	if n.Kind != scalarNode || n.Tag != stringTag || refused(n) {
		want := "text"
		if t.example != "" {
			want += " such as " + t.example
		}
		if n.Kind == scalarNode && n.Tag != nullTag {
			want += " in quotes"
		}
		d.wrongType(n, at, want)
		into.Bad = true
		return
	}
	*into = Value[string]{V: n.Value, Pos: d.at(n)}
}

func (t *text) schema(*definitions) object {
	s := object{{"type", "string"}}
	if t.pattern != "" {
		s = append(s, member{"pattern", t.pattern})
	}
	return s
}

// option is text from a closed set.
type option struct {
	values []string
}

func (o *option) decode(d *decoder, n *node, at place, into *Value[string]) {
	if n.Kind != scalarNode || n.Tag != stringTag || refused(n) {
		want := join(o.values, "or")
		if n.Kind == scalarNode && slices.Contains(o.values, n.Value) {
			want = strconv.Quote(n.Value) + " in quotes"
		}
		d.wrongType(n, at, want)
		into.Bad = true
		return
	}
	if !slices.Contains(o.values, n.Value) {
		d.Errorf(d.at(n), diag.UnknownValue, "%sunknown value %s: use %s%s", at.prefix(), quoteShort(n.Value),
			join(o.values, "or"), d.DidYouMean(n.Value, o.values))
		into.Bad = true
		return
	}
	*into = Value[string]{V: n.Value, Pos: d.at(n)}
}

func (o *option) schema(*definitions) object { return object{{"enum", o.values}} }

// join returns "a, b or c" for the word "or".
func join(values []string, word string) string {
	last := len(values) - 1
	if last < 1 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:last], ", ") + " " + word + " " + values[last]
}

// integer is a whole number of 64 bits. The bounds are for editors: the model checks them.
type integer struct {
	least, most int64
}

func (i *integer) decode(d *decoder, n *node, at place, into *Value[int64]) {
	into.Bad = true
	if n.Kind != scalarNode || n.Tag != intTag || refused(n) {
		d.wrongType(n, at, "a whole number")
		return
	}
	if leadingZero(n.Value) {
		d.wrongType(n, at, "a whole number without a leading zero")
		return
	}
	v, err := ParseInt(n.Value)
	if err != nil {
		d.wrongType(n, at, "a whole number of at most 64 bits")
		return
	}
	*into = Value[int64]{V: v, Pos: d.at(n)}
}

func (i *integer) schema(*definitions) object {
	return object{{"type", "integer"}, {"minimum", i.least}, {"maximum", i.most}}
}

// leadingZero reports whether text is a number that may be read as octal or as decimal, such as 010.
func leadingZero(text string) bool {
	text = strings.TrimLeft(text, "+-")
	return len(text) > 1 && text[0] == '0' && (text[1] == '_' || text[1] >= '0' && text[1] <= '9')
}

// ParseInt reads a whole number as YAML writes it: decimal, 0x, 0o or 0b, with underscores.
func ParseInt(text string) (int64, error) {
	return strconv.ParseInt(strings.TrimPrefix(strings.ReplaceAll(text, "_", ""), "+"), 0, 64)
}

// ParseFloat reads a finite number as YAML writes it.
func ParseFloat(text string) (float64, error) {
	if v, err := ParseInt(text); err == nil {
		return float64(v), nil
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
	if err == nil && (math.IsInf(v, 0) || math.IsNaN(v)) {
		return 0, strconv.ErrRange
	}
	return v, err
}

// boolean is true or false.
type boolean struct{}

func (boolean) decode(d *decoder, n *node, at place, into *Value[bool]) {
	if n.Kind != scalarNode || n.Tag != boolTag || refused(n) {
		d.wrongType(n, at, "true or false")
		into.Bad = true
		return
	}
	*into = Value[bool]{V: strings.EqualFold(n.Value, "true"), Pos: d.at(n)}
}

func (boolean) schema(*definitions) object { return object{{"type", "boolean"}} }

// secrecy is true, false or sealed.
type secrecy struct{}

func (secrecy) decode(d *decoder, n *node, at place, into *Value[Secrecy]) {
	v := Open
	switch {
	case n.Kind == scalarNode && n.Tag == boolTag && !refused(n):
		if strings.EqualFold(n.Value, "true") {
			v = Masked
		}
	case n.Kind == scalarNode && n.Tag == stringTag && !refused(n) && n.Value == "sealed":
		v = Sealed
	default:
		d.wrongType(n, at, "true, false or sealed")
		into.Bad = true
		return
	}
	*into = Value[Secrecy]{V: v, Pos: d.at(n)}
}

func (secrecy) schema(*definitions) object { return object{{"enum", []any{true, false, "sealed"}}} }

// duration is a length of time, in the syntax of Go's time.ParseDuration without a sign.
type duration struct{}

func (duration) decode(d *decoder, n *node, at place, into *Value[time.Duration]) {
	const want = "a duration such as 30s, 5m or 168h"
	if n.Kind != scalarNode || n.Tag != stringTag || refused(n) || !durationSyntax.MatchString(n.Value) {
		d.wrongType(n, at, want)
		return
	}
	v, err := time.ParseDuration(n.Value)
	if err != nil {
		d.wrongType(n, at, want+" of at most 292 years")
		return
	}
	*into = Value[time.Duration]{V: v, Pos: d.at(n)}
}

func (duration) schema(*definitions) object {
	return object{{"type", "string"}, {"pattern", durationPattern}}
}

// rate is a number of events in a period: 10/1m.
type rate struct{}

func (rate) decode(d *decoder, n *node, at place, into *Value[Rate]) {
	const want = "a rate such as 10/1m"
	into.Bad = true
	if n.Kind != scalarNode || n.Tag != stringTag || refused(n) || !rateSyntax.MatchString(n.Value) {
		d.wrongType(n, at, want)
		return
	}
	events, period, _ := strings.Cut(n.Value, "/")
	v, err := strconv.ParseInt(events, 10, 64)
	if err != nil {
		d.wrongType(n, at, want+" with a number of at most 64 bits")
		return
	}
	span, err := time.ParseDuration(period)
	if err != nil {
		d.wrongType(n, at, want+" with a period of at most 292 years")
		return
	}
	*into = Value[Rate]{V: Rate{Events: v, Period: span}, Pos: d.at(n)}
}

func (rate) schema(*definitions) object {
	return object{{"type", "string"}, {"pattern", ratePattern}}
}

// bound is a number or, for fields of type duration, a text.
type bound struct{}

func (bound) decode(d *decoder, n *node, at place, into *Value[Bound]) {
	if n.Kind != scalarNode || refused(n) || (n.Tag != intTag && n.Tag != floatTag && n.Tag != stringTag) {
		d.wrongType(n, at, "a number, or a duration such as 30s")
		return
	}
	if n.Tag != stringTag && leadingZero(n.Value) {
		d.wrongType(n, at, "a number without a leading zero")
		return
	}
	*into = Value[Bound]{V: Bound{Text: n.Value, Number: n.Tag != stringTag}, Pos: d.at(n)}
}

func (bound) schema(*definitions) object { return object{{"type", []string{"number", "string"}}} }
