// Package eventkey renders the keys of events: dedupe keys, partition keys and entity ids. Generated code calls it.
// Without generated code, call it in the function Keys of an outbox.TopicSpec.
package eventkey

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/payload"
)

// ErrEmptyPart: a field that a key is made of is an empty string, a zero UUID or a zero date. It is
// outbox.ErrEmptyKeyPart.
var ErrEmptyPart = errors.New("empty key part")

// Key is a rendered key of an event: its dedupe key, its partition key or its entity id. The zero value means that
// there is no key. If a part is empty, Err names its field, and String returns "".
type Key struct {
	text  string
	empty string // the field whose value was empty
}

// NewKey joins parts with "/". Two different tuples of values never give the same key, because "/" and "%" inside a
// string part are percent-encoded.
func NewKey(parts ...KeyPart) Key {
	var stack [128]byte
	buf := stack[:0]
	for i := range parts {
		if parts[i].empty {
			return Key{empty: parts[i].field}
		}
		if i > 0 {
			buf = append(buf, '/')
		}
		buf = parts[i].append(buf)
	}
	return Key{text: string(buf)}
}

// String returns the text of the key, "" for the zero value and for a key with an empty part.
func (k Key) String() string { return k.text }

// IsZero reports whether k is the zero value. A key with an empty part is not zero: it is an error.
func (k Key) IsZero() bool { return k == Key{} }

// EmptyField returns the name of the first field whose value was empty, and "" if there is none.
func (k Key) EmptyField() string { return k.empty }

// Err returns nil, or an error that wraps ErrEmptyPart and names the first field whose value was empty.
func (k Key) Err() error {
	if k.empty == "" {
		return nil
	}
	return fmt.Errorf("render key: field %s: %w", k.empty, ErrEmptyPart)
}

// KeyPart is one segment of a key: the value of a payload field, or a literal.
type KeyPart struct {
	field          string
	prefix, suffix string
	text           string
	number         int64
	id             uuid.UUID
	kind           partKind
	empty          bool
}

type partKind uint8

const (
	partText partKind = iota
	partNumber
	partUUID
)

// UUIDPart renders v in lower case with hyphens. The zero UUID is an empty part.
func UUIDPart[U ~[16]byte](field string, v U) KeyPart {
	return KeyPart{field: field, id: uuid.UUID(v), kind: partUUID, empty: uuid.UUID(v) == uuid.Nil}
}

// StringPart renders a string or an enum, with "/" and "%" percent-encoded. "" is an empty part.
func StringPart[S ~string](field string, v S) KeyPart {
	return KeyPart{field: field, text: escapePart(string(v)), empty: v == ""}
}

// IntPart renders v in decimal. Zero is a value like any other.
func IntPart[I ~int32 | ~int64](field string, v I) KeyPart {
	return KeyPart{field: field, number: int64(v), kind: partNumber}
}

// DatePart renders v as 2006-01-02. The zero Date is an empty part.
func DatePart(field string, v payload.Date) KeyPart {
	return KeyPart{field: field, text: v.String(), empty: v.IsZero()}
}

// LiteralPart is a segment that is the same for every event.
func LiteralPart(text string) KeyPart { return KeyPart{text: text} }

// Affix returns p with fixed text around its value: "turn-" before an id, for example.
func (p KeyPart) Affix(prefix, suffix string) KeyPart {
	p.prefix, p.suffix = prefix, suffix
	return p
}

func (p *KeyPart) append(buf []byte) []byte {
	buf = append(buf, p.prefix...)
	switch p.kind {
	case partNumber:
		buf = strconv.AppendInt(buf, p.number, 10)
	case partUUID:
		buf = appendUUID(buf, p.id)
	default:
		buf = append(buf, p.text...)
	}
	return append(buf, p.suffix...)
}

// appendUUID writes id as uuid.UUID.String does, without its allocation.
func appendUUID(buf []byte, id uuid.UUID) []byte {
	buf = append(hex.AppendEncode(buf, id[:4]), '-')
	buf = append(hex.AppendEncode(buf, id[4:6]), '-')
	buf = append(hex.AppendEncode(buf, id[6:8]), '-')
	buf = append(hex.AppendEncode(buf, id[8:10]), '-')
	return hex.AppendEncode(buf, id[10:])
}

// partEscaper keeps all other bytes, so that keys stay readable in SQL.
var partEscaper = strings.NewReplacer("%", "%25", "/", "%2F")

func escapePart(s string) string {
	if !strings.ContainsAny(s, "%/") {
		return s
	}
	return partEscaper.Replace(s)
}
