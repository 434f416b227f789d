package decode_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/payloads/decode"
	"github.com/outboxgen/outboxgen/payload"
)

type part struct {
	N int64 `json:"n"`
}

type order struct {
	ID    uuid.UUID `json:"id"`
	Parts []part    `json:"parts"`
	Note  *string   `json:"note,omitempty"`
}

// TestStrictReasons: a strict decoder refuses an incomplete payload permanently, with the path of the field and without its
// value, and ignores fields that it does not know. One that is not strict does as encoding/json.
func TestStrictReasons(t *testing.T) {
	t.Parallel()
	const id = `"6ba7b810-9dad-11d1-80b4-00c04fd430c8"`
	strict, loose := decode.NewDecoder(reflect.TypeFor[order](), 2, true), decode.NewDecoder(reflect.TypeFor[order](), 2, false)
	for text, want := range map[string]string{
		`{"parts": []}`: "decode payload: field id is missing",
		`{"id": "00000000-0000-0000-0000-000000000000", "parts": []}`: "decode payload: field id is the zero UUID",
		`{"id": ` + id + `, "parts": null}`:                           "decode payload: field parts is null",
		`{"id": ` + id + `, "parts": [{"n": 1}, {"m": 41}]}`:          "decode payload: field parts[1].n is missing",
		`{"id": ` + id + `, "parts": [{"n": "S3CRET"}]}`:              "decode payload: field parts[0].n does not fit int64",
		`{"id": "S3CRET", "parts": []}`:                               "decode payload: field id does not fit uuid.UUID",
		`"S3CRET"`:                                                    `decode payload: it is a JSON string, which is not a valid decode_test.order`,
		`["S3CRET"]`:                                                  `decode payload: it is a JSON array, which is not a valid decode_test.order`,
		`17171717`:                                                    `decode payload: it is a JSON number, which is not a valid decode_test.order`,
		`null`:                                                        "decode payload: it is null, which is not a valid decode_test.order",
	} {
		_, err := strict.Decode(1, json.RawMessage(text))
		require.EqualError(t, err, want, text)
		require.True(t, errclass.IsPermanent(err))
	}
	p, err := loose.Decode(1, json.RawMessage(`{}`))
	require.NoError(t, err)
	require.Equal(t, &order{}, p)
	for _, decoder := range []*decode.Decoder{strict, loose} {
		p, err = decoder.Decode(2, json.RawMessage(`{"id": `+id+`, "parts": [{"n": 0, "more": {}}], "later": [1]}`))
		require.NoError(t, err)
		require.Len(t, p.(*order).Parts, 1)
		_, err = decoder.Decode(3, json.RawMessage(`{}`))
		require.ErrorContains(t, err, "version 3")
		require.False(t, errclass.IsPermanent(err))
	}
}

type orderV1 struct {
	Number int64 `json:"number"`
}

type orderV2 struct {
	ID string `json:"id"`
}

// TestHistory: an older payload is decoded as the type of its time, and then brought to the newest version.
func TestHistory(t *testing.T) {
	t.Parallel()
	step := payload.Upcast(1, func(old orderV1) (orderV2, error) { return orderV2{ID: fmt.Sprint("o-", old.Number)}, nil })
	d := decode.NewDecoder(reflect.TypeFor[orderV2](), 2, true, step)
	for version, text := range map[int]string{1: `{"number": 7}`, 2: `{"id": "o-7"}`} {
		p, err := d.Decode(version, json.RawMessage(text))
		require.NoError(t, err)
		require.Equal(t, &orderV2{ID: "o-7"}, p)
	}
	_, err := d.Decode(1, json.RawMessage(`{"id": "o-7"}`))
	require.EqualError(t, err, "decode payload: field number is missing")
	require.True(t, errclass.IsPermanent(err))
}

// TestNull: null is a payload only of a type that has it. json.Unmarshal would leave the zero value of any other.
func TestNull(t *testing.T) {
	t.Parallel()
	for of, takes := range map[reflect.Type]bool{
		reflect.TypeFor[map[string]int](): true, reflect.TypeFor[[]int](): true, reflect.TypeFor[*part](): true,
		reflect.TypeFor[any](): true, reflect.TypeFor[json.RawMessage](): true, reflect.TypeFor[order](): false,
		reflect.TypeFor[int](): false,
	} {
		_, err := decode.NewDecoder(of, 1, false).Decode(1, json.RawMessage(" null "))
		require.Equal(t, takes, err == nil, of)
	}
}

// TestPlaceOfErrors: an error says where a payload is wrong, and never what stands there.
func TestPlaceOfErrors(t *testing.T) {
	t.Parallel()
	d := decode.NewDecoder(reflect.TypeFor[order](), 1, false)
	for text, want := range map[string]string{
		`{"id": S3CRET}`:      "decode payload: invalid JSON at byte 8",
		`{"parts": "S3CRET"}`: `decode payload: field "parts" does not fit []decode_test.part`,
		`{"id": "S3CRET"}`:    "decode payload: a field does not fit its type",
	} {
		_, err := d.Decode(1, json.RawMessage(text))
		require.EqualError(t, err, want)
	}
}
