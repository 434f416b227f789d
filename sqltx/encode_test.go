package sqltx

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

// TestEncode: every argument becomes a value that each driver sends as it is.
func TestEncode(t *testing.T) {
	t.Parallel()
	id := pgtype.UUID{Bytes: [16]byte{0: 1, 15: 255}, Valid: true}
	at := pgtype.Timestamptz{Time: time.Date(1, 2, 3, 4, 5, 6, 123456789, time.FixedZone("", -3600)), Valid: true}
	const idText, atText = "01000000-0000-0000-0000-0000000000ff", "0001-02-03 05:05:06.123456Z"
	text := ""
	for _, c := range []struct{ arg, want any }{
		{&text, ""}, {(*string)(nil), nil}, {new(int64), int64(0)}, {(*int64)(nil), nil}, {"a", "a"}, {true, true}, {int64(1) << 62, int64(1) << 62}, {int32(-7), int64(-7)}, {int16(7), int64(7)},
		{json.RawMessage(`{"a":1}`), `{"a":1}`}, {json.RawMessage(nil), nil},
		{id, idText}, {pgtype.UUID{}, nil}, {at, atText}, {pgtype.Timestamptz{}, nil},
		{[]string(nil), nil}, {[]string{}, "{}"}, {[]string{"", "NULL", `a"b\`, "{,}", "é\n"}, `{"","NULL","a\"b\\","{,}","é` + "\n" + `"}`},
		{[]json.RawMessage{nil, []byte(`"\""`), []byte("null")}, `{NULL,"\"\\\"\"","null"}`}, {[]json.RawMessage(nil), nil},
		{[]pgtype.UUID{{}, id}, "{NULL," + idText + "}"}, {[]pgtype.Timestamptz{{}, at}, `{NULL,"` + atText + `"}`},
		{[]int64{-1 << 63, 1<<63 - 1}, "{-9223372036854775808,9223372036854775807}"}, {[]int32{0, -1}, "{0,-1}"}, {[]int16{32767}, "{32767}"},
	} {
		got, err := encode([]any{c.arg})
		require.NoError(t, err)
		require.Equal(t, []any{c.want}, got, "%T", c.arg)
	}
}

func TestDecodeUUIDs(t *testing.T) {
	t.Parallel()
	const id = "01000000-0000-0000-0000-0000000000ff"
	for text, want := range map[string]int{"{}": 0, "{" + id + "}": 1, "{" + id + "," + id + "}": 2} {
		ids, err := decodeUUIDs(text)
		require.NoError(t, err)
		require.Len(t, ids, want)
		for _, got := range ids {
			require.Equal(t, id, got.String())
		}
	}
	for _, text := range []string{"", "{", id, "{x}", "{NULL}"} {
		_, err := decodeUUIDs(text)
		require.Error(t, err, text)
	}
	var ids scannedUUIDs
	require.NoError(t, ids.Scan([]byte("{"+id+"}")))
	require.Len(t, ids, 1)
	require.NoError(t, ids.Scan(nil))
	require.Nil(t, ids)
	require.Error(t, ids.Scan(7))
	var one scannedUUID
	require.NoError(t, one.Scan([]byte(id)))
	require.True(t, one.Valid)
	require.NoError(t, one.Scan(nil))
	require.False(t, one.Valid)
	require.Error(t, one.Scan(7))
}
