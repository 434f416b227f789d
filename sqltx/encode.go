package sqltx

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// encode turns the arguments of a statement of outbox into values that every driver sends in the same way: nil, bool,
// int64 and string. Uuids, times, JSON and arrays are sent as the text that PostgreSQL reads.
func encode(args []any) ([]any, error) {
	values := make([]any, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case string, int64, bool:
			values[i] = v
		case int32:
			values[i] = int64(v)
		case int16:
			values[i] = int64(v)
		case *string:
			if v != nil {
				values[i] = *v
			}
		case *int64:
			if v != nil {
				values[i] = *v
			}
		case json.RawMessage:
			if v != nil {
				values[i] = string(v)
			}
		case pgtype.UUID:
			if v.Valid {
				values[i] = v.String()
			}
		case pgtype.Timestamptz:
			if v.Valid {
				values[i] = v.Time.UTC().Format(timeLayout)
			}
		default:
			var known bool
			if values[i], known = encodeArray(arg); !known {
				return nil, fmt.Errorf(
					"sqltx cannot send an argument of type %T: update module sqltx to the version of outboxgen", arg)
			}
		}
	}
	return values, nil
}

// encodeArray returns a slice as the text of an array. known is false if encode does not know the type.
func encodeArray(arg any) (value any, known bool) {
	orNull := func(b *strings.Builder, valid bool, text func() string) {
		if valid {
			b.WriteString(text())
		} else {
			b.WriteString("NULL")
		}
	}
	switch v := arg.(type) {
	case []string:
		return array(v, func(s string) int { return len(s) + 2 }, appendQuoted), true
	case []json.RawMessage:
		size := func(m json.RawMessage) int { return len(m) + len(m)/4 + 2 }
		return array(v, size, func(b *strings.Builder, m json.RawMessage) {
			if m == nil {
				b.WriteString("NULL")
			} else {
				appendQuoted(b, string(m))
			}
		}), true
	case []pgtype.UUID:
		return array(v, func(pgtype.UUID) int { return 36 }, func(b *strings.Builder, id pgtype.UUID) {
			orNull(b, id.Valid, id.String)
		}), true
	case []pgtype.Timestamptz:
		size := func(pgtype.Timestamptz) int { return len(timeLayout) + 2 }
		return array(v, size, func(b *strings.Builder, t pgtype.Timestamptz) {
			orNull(b, t.Valid, func() string { return t.Time.UTC().Format(`"` + timeLayout + `"`) })
		}), true
	case []int64:
		return array(v, intSize, appendInt[int64]), true
	case []int32:
		return array(v, intSize, appendInt[int32]), true
	case []int16:
		return array(v, intSize, appendInt[int16]), true
	}
	return nil, false
}

// timeLayout is a time with the precision of timestamptz, which pgx sends too. It is read alike with every DateStyle.
const timeLayout = "2006-01-02 15:04:05.000000Z07:00"

// array returns elements as the text of an array, and nil, which is NULL, if they are nil. size is about how long an
// element gets.
func array[T any](elements []T, size func(T) int, add func(*strings.Builder, T)) any {
	if elements == nil {
		return nil
	}
	n := 2
	for _, e := range elements {
		n += size(e) + 1
	}
	var b strings.Builder
	b.Grow(n)
	b.WriteByte('{')
	for i, e := range elements {
		if i > 0 {
			b.WriteByte(',')
		}
		add(&b, e)
	}
	b.WriteByte('}')
	return b.String()
}

func intSize[T any](T) int { return 4 }

func appendInt[T int16 | int32 | int64](b *strings.Builder, n T) {
	var digits [20]byte
	b.Write(strconv.AppendInt(digits[:0], int64(n), 10))
}

// appendQuoted adds text as an element of an array.
func appendQuoted(b *strings.Builder, text string) {
	b.WriteByte('"')
	done := 0
	for i := range len(text) {
		if c := text[i]; c == '"' || c == '\\' {
			b.WriteString(text[done:i])
			b.WriteByte('\\')
			done = i
		}
	}
	b.WriteString(text[done:])
	b.WriteByte('"')
}

// decodeUUIDs reads the text of an array of uuids without nulls.
func decodeUUIDs(text string) ([]pgtype.UUID, error) {
	inner, opened := strings.CutPrefix(text, "{")
	inner, closed := strings.CutSuffix(inner, "}")
	if !opened || !closed {
		return nil, fmt.Errorf("%q is not the text of an array", text)
	}
	ids := make([]pgtype.UUID, 0, len(inner)/37+1)
	for id := range strings.SplitSeq(inner, ",") {
		if id == "" {
			continue // of an empty array
		}
		ids = append(ids, pgtype.UUID{})
		if err := ids[len(ids)-1].Scan(id); err != nil {
			return nil, err
		}
	}
	return ids, nil
}
