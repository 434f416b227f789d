package fastjson

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/payload"
)

type colour string

func (c colour) Known() bool { return c == "red" }

type place struct {
	City  string  `json:"city"`
	Since *string `json:"since,omitempty"`
}

// strictFields has a required field of each type that payloads have, and some that are optional.
type strictFields struct {
	ID      uuid.UUID                     `json:"id"`
	Text    string                        `json:"text"`
	On      bool                          `json:"on"`
	Small   int32                         `json:"small"`
	Rate    float64                       `json:"rate"`
	At      time.Time                     `json:"at"`
	Day     payload.Date                  `json:"day"`
	Took    time.Duration                 `json:"took"`
	Bytes   []byte                        `json:"bytes"`
	Raw     json.RawMessage               `json:"raw"`
	Colour  colour                        `json:"colour"`
	Place   place                         `json:"place"`
	Tags    []string                      `json:"tags"`
	IDs     []uuid.UUID                   `json:"ids"`
	Colours []colour                      `json:"colours"`
	Places  []place                       `json:"places"`
	Named   map[string]place              `json:"named"`
	Counts  map[string]int64              `json:"counts"`
	Deep    map[string][]map[string]place `json:"deep"`
	Lists   [][]string                    `json:"lists"`
	Maybe   *string                       `json:"maybe,omitempty"`
	MaybeID *uuid.UUID                    `json:"maybe_id,omitempty"`
	MaybeOf *place                        `json:"maybe_of,omitempty"`
	Some    []string                      `json:"some,omitempty"`
}

// whole are the fields of a complete payload, in JSON.
func whole() map[string]string {
	return map[string]string{
		"id": `"6ba7b810-9dad-11d1-80b4-00c04fd430c8"`, "text": `""`, "on": `false`, "small": `0`, "rate": `0`, "at": `"2026-01-02T03:04:05Z"`,
		"day": `"2026-01-02"`, "took": `0`, "bytes": `""`, "raw": `null`, "colour": `"red"`, "place": `{"city": ""}`, "tags": `["", "x"]`,
		"ids": `["00000000-0000-0000-0000-000000000000"]`, "colours": `["red"]`, "places": `[{"city": "Bern", "since": null}]`,
		"named": `{"x": {"city": ""}}`, "counts": `{"a": 0}`, "deep": `{"a": [{"b": {"city": ""}}]}`, "lists": `[["a"], null, []]`,
	}
}

func object(fields map[string]string) string {
	var parts []string
	for name, value := range fields {
		parts = append(parts, fmt.Sprintf("%q: %s", name, value))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// decodeStrict decodes text as a strict decoder and, when that leaves it to others, with json.Unmarshal and a Shape.
func decodeStrict(t *testing.T, text string) (got strictFields, plainly bool, fault string) {
	t.Helper()
	of := reflect.TypeFor[strictFields]()
	var want strictFields
	require.NoError(t, json.Unmarshal([]byte(text), &want), text)
	path, why := ShapeOf(of).Incomplete([]byte(text))
	if plainly = StrictOf(of).Decode([]byte(text), reflect.ValueOf(&got).Elem()); plainly {
		require.Empty(t, why, text)
		require.Equal(t, want, got, text)
	}
	return got, plainly, strings.TrimSpace(path + " " + why)
}

// TestStrict: each way in which a payload can be incomplete is found, with the path of the field. Whatever is complete is
// decoded in one pass, even with fields that the type does not have.
func TestStrict(t *testing.T) {
	t.Parallel()
	_, plainly, fault := decodeStrict(t, object(whole()))
	require.Empty(t, fault)
	require.True(t, plainly)
	for name := range whole() {
		fields := whole()
		delete(fields, name)
		_, plainly, fault := decodeStrict(t, object(fields))
		require.Equal(t, name+" is missing", fault)
		require.False(t, plainly, name)
		fields[strings.ToUpper(name)] = whole()[name]
		_, plainly, fault = decodeStrict(t, object(fields))
		require.Equal(t, name+" is missing", fault, "names are exact")
		require.False(t, plainly, name)
		if name == "raw" {
			continue
		}
		fields[name] = "null"
		_, plainly, fault = decodeStrict(t, object(fields))
		require.Equal(t, name+" is null", fault)
		require.False(t, plainly, name)
	}
	for want, change := range map[string][2]string{
		"id is the zero UUID":           {"id", `"00000000-0000-0000-0000-000000000000"`},
		"at is the zero time":           {"at", `"0001-01-01T01:00:00+01:00"`},
		"colour is empty":               {"colour", `""`},
		"place.city is missing":         {"place", `{}`},
		"place.city is null":            {"place", `{"city": null}`},
		"tags[1] is null":               {"tags", `["", null]`},
		"ids[0] is null":                {"ids", `[null]`},
		"colours[1] is empty":           {"colours", `["red", ""]`},
		"places[1].city is missing":     {"places", `[{"city": "Bern"}, {"since": "x"}]`},
		"places[0] is null":             {"places", `[null]`},
		"named[*].city is null":         {"named", `{"S3CRET": {"city": null}}`},
		"named[*] is null":              {"named", `{"S3CRET": null}`},
		"counts[*] is null":             {"counts", `{"S3CRET": null}`},
		"deep[*][0][*].city is missing": {"deep", `{"S3CRET": [{"S3CRET": {}}]}`},
		"lists[0][1] is null":           {"lists", `[["a", null]]`},
		"maybe_of.city is missing":      {"maybe_of", `{"since": "x"}`},
		"some[0] is null":               {"some", `[null]`},
	} {
		fields := whole()
		fields[change[0]] = change[1]
		_, plainly, fault := decodeStrict(t, object(fields))
		require.Equal(t, want, fault)
		require.False(t, plainly, want)
	}
	for _, change := range [][2]string{
		{"colour", `"purple"`}, {"colours", `["purple"]`}, {"maybe", `null`}, {"maybe_id", `null`}, {"maybe_id", `"00000000-0000-0000-0000-000000000000"`},
		{"maybe_of", `null`}, {"some", `null`}, {"raw", `{"a": null}`}, {"tags", `[]`}, {"places", `[ ]`}, {"lists", `[]`}, {"deep", `{"a": null}`},
		{"added", `{"x": [1, "}"]}`}, {"added", `null`}, {"place", `{"city": "Bern", "zip": "1"}`}, {"tags", ` [ "a" , "b\n" ] `},
	} {
		fields := whole()
		fields[change[0]] = change[1]
		_, plainly, fault := decodeStrict(t, object(fields))
		require.Empty(t, fault, change)
		require.True(t, plainly, change)
	}
}

// A type that holds itself, which no generated one does, ends somewhere.
func TestStrictOfATypeThatHoldsItself(t *testing.T) {
	t.Parallel()
	type itself struct {
		Next []itself `json:"next,omitempty"`
		N    int      `json:"n"`
	}
	var got itself
	require.True(t, StrictOf(reflect.TypeFor[itself]()).Decode([]byte(`{"n": 1, "next": [{"n": 2, "next": [{"n": 3}]}]}`), reflect.ValueOf(&got).Elem()))
	require.Equal(t, 3, got.Next[0].Next[0].N)
}

func FuzzStrict(f *testing.F) {
	f.Add(object(whole()))
	f.Add(`{"city": "", "zip": {}}`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, of := range []reflect.Type{reflect.TypeFor[strictFields](), reflect.TypeFor[place]()} {
			got, want := reflect.New(of), reflect.New(of)
			err := json.Unmarshal([]byte(text), want.Interface())
			if !StrictOf(of).Decode([]byte(text), got.Elem()) {
				continue
			}
			require.NoError(t, err, text)
			require.Equal(t, want.Interface(), got.Interface(), text)
			_, fault := ShapeOf(of).Incomplete([]byte(text))
			require.Empty(t, fault, text)
		}
	})
}

func BenchmarkDecodeStrict(b *testing.B) {
	type moved struct {
		OrderID uuid.UUID `json:"order_id"`
		Seq     int64     `json:"seq"`
		Note    string    `json:"note"`
	}
	text := []byte(`{"seq": 12, "note": "some text of usual length", "order_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}`)
	for name, d := range map[string]*Decoder{"loose": Of(reflect.TypeFor[moved]()), "strict": StrictOf(reflect.TypeFor[moved]())} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var m moved
				if !d.Decode(text, reflect.ValueOf(&m).Elem()) {
					b.Fatal("not plain")
				}
			}
		})
	}
}
