package decode_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/payloads/decode"
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
