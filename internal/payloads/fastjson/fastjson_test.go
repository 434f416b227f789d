package fastjson

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/payload"
)

type kind string

type part struct {
	Input  int64 `json:"input"`
	Output int32 `json:"output"`
}

// allFields has a field of each type that payloads have.
type allFields struct {
	ID       uuid.UUID        `json:"id"`
	Seq      int64            `json:"seq"`
	Small    int8             `json:"small"`
	Kind     kind             `json:"kind"`
	Note     string           `json:"note"`
	Maybe    *string          `json:"maybe,omitempty"`
	MaybeID  *uuid.UUID       `json:"maybe_id,omitempty"`
	MaybeInt *int64           `json:"maybe_int,omitempty"`
	On       bool             `json:"on"`
	Rate     float64          `json:"rate"`
	At       time.Time        `json:"at"`
	MaybeAt  *time.Time       `json:"maybe_at,omitempty"`
	Day      payload.Date     `json:"day"`
	Took     time.Duration    `json:"took"`
	Bytes    []byte           `json:"bytes"`
	Tags     []string         `json:"tags"`
	Counts   map[string]int64 `json:"counts"`
	Raw      json.RawMessage  `json:"raw"`
	Any      any              `json:"any"`
	Part     part             `json:"part"`
	MaybeOf  *part            `json:"maybe_of,omitempty"`
	Parts    []part           `json:"parts"`
	Number   json.Number      `json:"number"`
	Untagged int
	_        int
	Left     int `json:"-"`
}

const full = `{"id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "seq": -9223372036854775808, "small": 127, "kind": "a", "note": "né \"q\"",
	"maybe": "", "maybe_id": "6ba7b811-9dad-11d1-80b4-00c04fd430c8", "maybe_int": 0, "on": true, "rate": -1.5e3, "at": "2026-01-02T03:04:05.6Z",
	"maybe_at": "2026-01-02T03:04:05Z", "day": "2026-01-02", "took": 5, "bytes": "AAEC", "tags": ["x", "y]", "\""], "counts": {"a": 1, "}": 2},
	"raw": {"x": [1, {"y": "]"}]}, "any": [null, 1], "part": {"input": 1, "output": 2}, "maybe_of": {"input": 3}, "parts": [{}, {"output": 4}],
	"number": 12, "Untagged": 7}`

// samePlain requires that text becomes what json.Unmarshal makes of it, or is left to it.
func samePlain[P any](t testing.TB, text string) (plainly bool) {
	t.Helper()
	var want, got P
	err := json.Unmarshal([]byte(text), &want)
	if plainly = Of(reflect.TypeFor[P]()).Decode([]byte(text), reflect.ValueOf(&got).Elem()); plainly {
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	} else {
		require.Zero(t, got, text)
	}
	return plainly
}

// TestDecodesAsUnmarshalDoes: whatever is done to a byte of a payload.
func TestDecodesAsUnmarshalDoes(t *testing.T) {
	t.Parallel()
	require.True(t, samePlain[allFields](t, full))
	all := 0
	for i := range len(full) {
		for _, c := range []string{"", "0", "9", "-", "+", ".", "e", `"`, `\`, "{", "}", "[", "]", ",", ":", " ", "\n", "\x00", "\xff", "a", "I", "null", `""`} {
			for _, end := range []int{i, i + 1, len(full)} {
				if samePlain[allFields](t, full[:i]+c+full[end:]) {
					all++
				}
			}
		}
	}
	require.Greater(t, all, 1000, "most is plain still")
}

func TestLeavesTheRestToUnmarshal(t *testing.T) {
	t.Parallel()
	for text, plainly := range map[string]bool{
		`{}`:                             true,
		` { } `:                          true,
		`{"input":1,"output":2}`:         true,
		`{"output": 2, "input": 1}`:      true,
		`{"input": null}`:                true,
		`{"input": 1e2}`:                 false,
		`{"output": 2147483648}`:         false,
		`{"input": 01}`:                  false,
		`{"input": 1, "input": 2}`:       false,
		`{"INPUT": 1}`:                   false,
		`{"input": 1, "later": 2}`:       false,
		`{"inp\u0075t": 1}`:              false,
		`{"input": 1} x`:                 false,
		`{"input": 1`:                    false,
		`{"input": "1"}`:                 false,
		`null`:                           false,
		``:                               false,
		`{"input": 9223372036854775808}`: false,
	} {
		require.Equal(t, plainly, samePlain[part](t, text), text)
	}
}

func TestTypes(t *testing.T) {
	t.Parallel()
	type embeds struct{ part }
	type quoted struct {
		N int `json:"n,string"`
	}
	type itself struct {
		Next *itself `json:"next"`
		N    int     `json:"n"`
	}
	odd := reflect.StructOf([]reflect.StructField{{Name: "A", Type: reflect.TypeFor[int](), Tag: `json:"a b"`}})
	twice := reflect.StructOf([]reflect.StructField{
		{Name: "A", Type: reflect.TypeFor[int](), Tag: `json:"b"`}, {Name: "B", Type: reflect.TypeFor[int](), Tag: `json:"b"`},
	})
	for _, of := range []reflect.Type{
		reflect.TypeFor[int](), reflect.TypeFor[any](), reflect.TypeFor[*part](), reflect.TypeFor[json.RawMessage](), reflect.TypeFor[time.Time](),
		reflect.TypeFor[payload.Date](), reflect.TypeFor[embeds](), reflect.TypeFor[quoted](), odd, twice,
	} {
		require.Nil(t, Of(of), of)
	}
	require.True(t, samePlain[itself](t, `{"n": 1, "next": {"n": 2, "next": {"n": 3}}}`))
	require.True(t, samePlain[struct{}](t, `{}`))
}

func FuzzDecode(f *testing.F) {
	f.Add(full)
	f.Add(`{"part": {"input": 1, "output": 2147483648}}`)
	f.Fuzz(func(t *testing.T, text string) { samePlain[allFields](t, text) })
}

func BenchmarkDecode(b *testing.B) {
	type moved struct {
		OrderID uuid.UUID `json:"order_id"`
		Seq     int64     `json:"seq"`
		Note    string    `json:"note"`
	}
	text := []byte(`{"seq": 123456, "note": "paid in full by card, to be shipped with the next van that leaves the yard, with a receipt on paper", "order_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}`)
	p := Of(reflect.TypeFor[moved]())
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var m moved
			if !p.Decode(text, reflect.ValueOf(&m).Elem()) {
				b.Fatal("left")
			}
		}
	})
	b.Run("json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var m moved
			if err := json.Unmarshal(text, &m); err != nil {
				b.Fatal(err)
			}
		}
	})
}
