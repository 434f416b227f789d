// Package attributes lists the attributes of the CloudEvent that an event becomes. The encoders of package publish and
// the publishers that write attributes without an encoder share it.
package attributes

import (
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/outboxgen/outboxgen/outbox"
)

// Name is an attribute. The order of names is that of their texts.
type Name int

// The attributes that an event may have.
const (
	CausationID Name = iota
	CorrelationID
	DataVersion
	DedupeKey
	EntityID
	EntityType
	EntityVersion
	ID
	PartitionKey
	Source
	SpecVersion
	Subject
	TenantID
	Time
	TraceParent
	TraceState
	Type
	Count // of the names
)

// Names are the texts of the names.
var Names = [Count]string{
	"causationid", "correlationid", "dataversion", "dedupekey", "entityid", "entitytype", "entityversion", "id",
	"partitionkey", "source", "specversion", "subject", "tenantid", "time", "traceparent", "tracestate", "type",
}

func (n Name) String() string { return Names[n] }

// ContentType is that of a payload that is sent as it is.
const ContentType = "application/json"

// IsHeader reports whether a header of an event is sent as an attribute. A causation_id or correlation_id whose value
// cannot be one stays a header, because an event that anybody can enqueue must not become one that nobody can send.
func IsHeader(name, value string) bool {
	switch name {
	case Names[TraceParent], Names[TraceState]:
		return true
	case outbox.CausationHeader, outbox.CorrelationHeader:
		return IsText(value)
	}
	return false
}

// Attribute is an attribute of an event. Its value must not be changed: attributes of other events may share it.
type Attribute struct {
	Name  Name
	Value []byte
}

// List makes the attributes of events. The zero value is ready for use. It must not be used concurrently. It makes few
// allocations for many events, and values that follow each other and are equal share their bytes.
type List struct {
	room   []byte
	seen   [Count]seen // the latest text of each attribute
	of     seen        // the latest namespace, and the source that it gives
	time   time.Time
	timeAs []byte
	texts  [Count]seen // the latest value of each attribute, and its text
}

// seen is a text that can be an attribute, and its bytes.
type seen struct {
	text  string
	bytes []byte
}

// roomSize is the size of an allocation for values.
const roomSize = 16 << 10

var specVersion = []byte("1.0")

// Append adds the attributes of e to to, in the order of their names. An empty source means "/" and the namespace. If a
// value cannot be an attribute, the error is permanent.
func (l *List) Append(to []Attribute, source, wireType string, e *outbox.Event) ([]Attribute, error) {
	start := len(to)
	if len(e.Headers) > 0 {
		to = l.chain(to, CausationID, e.Headers[outbox.CausationHeader])
		to = l.chain(to, CorrelationID, e.Headers[outbox.CorrelationHeader])
	}
	to = append(to, Attribute{DataVersion, l.number(int64(max(e.Version, 1)))})
	to = l.optional(to, DedupeKey, e.DedupeKey)
	to = l.optional(to, EntityID, e.Entity.ID)
	to = l.optional(to, EntityType, e.Entity.Type)
	if e.Entity.Version != 0 {
		to = append(to, Attribute{EntityVersion, l.number(e.Entity.Version)})
	}
	to = append(to, Attribute{ID, l.uuid(e.ID)})
	to = l.optional(to, PartitionKey, e.PartitionKey)
	if source == "" {
		to = append(to, Attribute{Source, l.ofNamespace(e.Namespace)})
	} else {
		to = append(to, Attribute{Source, l.text(Source, source)})
	}
	to = append(to, Attribute{SpecVersion, specVersion})
	if subject := e.Entity.ID; subject != "" {
		to = append(to, Attribute{Subject, l.seen[EntityID].bytes})
	} else if e.PartitionKey != "" {
		to = append(to, Attribute{Subject, l.seen[PartitionKey].bytes})
	}
	if e.TenantID.Valid {
		to = append(to, Attribute{TenantID, l.uuid(e.TenantID.UUID)})
	}
	if !e.CreatedAt.IsZero() {
		to = append(to, Attribute{Time, l.instant(e.CreatedAt)})
	}
	if len(e.Headers) > 0 {
		to = l.optional(to, TraceParent, e.Headers[Names[TraceParent]])
		to = l.optional(to, TraceState, e.Headers[Names[TraceState]])
	}
	to = append(to, Attribute{Type, l.text(Type, wireType)})
	for _, a := range to[start:] {
		if a.Value == nil {
			return to[:start], outbox.Permanent(fmt.Errorf("encode event: attribute %s %w", a.Name, errControl))
		}
	}
	return to, nil
}

var errControl = errors.New("has a control character")

func (l *List) optional(to []Attribute, n Name, s string) []Attribute {
	if s == "" {
		return to
	}
	return append(to, Attribute{n, l.text(n, s)})
}

func (l *List) chain(to []Attribute, n Name, s string) []Attribute {
	if !IsText(s) {
		return to
	}
	return l.optional(to, n, s)
}

// text returns the bytes of s, or nil if s cannot be an attribute.
func (l *List) text(n Name, s string) []byte {
	last := &l.seen[n]
	if last.bytes != nil && last.text == s {
		return last.bytes
	}
	*last = seen{text: s}
	if IsText(s) {
		last.bytes = l.keep(append(l.free(len(s)), s...))
	}
	return last.bytes
}

// ofNamespace returns the source of a namespace.
func (l *List) ofNamespace(namespace string) []byte {
	last := &l.of
	if last.bytes != nil && last.text == namespace {
		return last.bytes
	}
	*last = seen{text: namespace}
	if IsText(namespace) {
		last.bytes = l.keep(append(append(l.free(1+len(namespace)), '/'), namespace...))
	}
	return last.bytes
}

func (l *List) number(n int64) []byte { return l.keep(strconv.AppendInt(l.free(20), n, 10)) }

func (l *List) uuid(id [16]byte) []byte {
	const digits = "0123456789abcdef"
	b := l.free(36)
	for i, octet := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			b = append(b, '-')
		}
		b = append(b, digits[octet>>4], digits[octet&0xf])
	}
	return l.keep(b)
}

// instant writes t as RFC 3339 in UTC.
func (l *List) instant(t time.Time) []byte {
	if l.timeAs == nil || !t.Equal(l.time) {
		l.time, l.timeAs = t, l.keep(t.UTC().AppendFormat(l.free(len(time.RFC3339Nano)), time.RFC3339Nano))
	}
	return l.timeAs
}

// Text returns the value of an attribute that Append has added. Values that share their bytes share their text.
func (l *List) Text(a Attribute) string {
	of := a.Name
	if of == Subject { // it is the value of another attribute
		if of = EntityID; !same(l.texts[of].bytes, a.Value) {
			of = PartitionKey
		}
	}
	last := &l.texts[of]
	if !same(last.bytes, a.Value) {
		*last = seen{text: string(a.Value), bytes: a.Value}
	}
	return last.text
}

// same reports whether a and b are the same place in memory. The empty value has none.
func same(a, b []byte) bool { return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] }

// free returns an empty slice with room for n bytes. keep keeps what was appended to it.
func (l *List) free(n int) []byte {
	if cap(l.room)-len(l.room) < n {
		l.room = make([]byte, 0, max(min(4*cap(l.room), roomSize), n, 256))
	}
	return l.room[len(l.room):]
}

func (l *List) keep(b []byte) []byte {
	l.room = l.room[:len(l.room)+len(b)]
	return b[:len(b):len(b)]
}

// IsText reports whether CloudEvents allows s as a String: valid Unicode without control characters and
// noncharacters (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md#type-system).
func IsText(s string) bool {
	for i := range len(s) {
		if c := s[i]; c >= utf8.RuneSelf {
			return isText(s[i:])
		} else if c < 0x20 || c == 0x7f {
			return false
		}
	}
	return true
}

func isText(s string) bool {
	for i, r := range s {
		switch {
		case r < 0x20, r >= 0x7f && r <= 0x9f, r >= 0xfdd0 && r <= 0xfdef, r&0xfffe == 0xfffe:
			return false
		case r == utf8.RuneError:
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return false
			}
		}
	}
	return true
}
