package outbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

// throughJSONB returns what PostgreSQL makes of text.
func throughJSONB(t testing.TB, pool *pgxpool.Pool, text []byte) (string, error) {
	t.Helper()
	var out string
	err := pool.QueryRow(t.Context(), "SELECT $1::text::jsonb::text", string(text)).Scan(&out)
	return out, err
}

func TestCheckJSONAtTheExactEdgesOfJSONB(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	zeros := func(n int) string { return strings.Repeat("0", n) }
	for name, edge := range map[string]struct{ in, out string }{
		"digits before the point":   {"1" + zeros(131071), "1" + zeros(131072)},
		"negative":                  {"-9" + zeros(131071), "-9" + zeros(131072)},
		"exponent":                  {"1e131071", "1e131072"},
		"exponent with a plus":      {"1E+0131071", "1E+0131072"},
		"digits and exponent":       {"12345e131067", "12345e131068"},
		"digits after the point":    {"0." + zeros(16382) + "1", "0." + zeros(16383) + "1"},
		"negative exponent":         {"1e-16383", "1e-16384"},
		"fraction and exponent":     {"1.25e-16381", "1.25e-16382"},
		"fraction, higher exponent": {"1.25e131071", "1.25e131072"},
		"pair":                      {`"\ud83d\ude00"`, `"\ud83d\ud83d"`},
		"control character":         {`"\u0001"`, `"\u0000"`},
		"backslash before u":        {`"\\u0000"`, `"\\\u0000"`},
		"last of the plane":         {`"\ud7ff\ue000"`, `"\ud7ff\udfff"`},
		"nul in a key":              {`{"\\u0000":1}`, `{"\u0000":1}`},
	} {
		require.NoError(t, checkJSON([]byte(edge.in)), name)
		_, err := throughJSONB(t, pool, []byte(edge.in))
		require.NoError(t, err, name)
		require.ErrorIs(t, checkJSON([]byte(edge.out)), ErrPayloadInvalid, name)
		_, err = throughJSONB(t, pool, []byte(edge.out))
		require.Error(t, err, name)
	}
	for _, depth := range []int{1, maxJSONDepth} {
		for _, text := range []string{
			strings.Repeat("[", depth) + strings.Repeat("]", depth),
			strings.Repeat(`{"a":`, depth) + "0" + strings.Repeat("}", depth),
		} {
			require.NoError(t, checkJSON([]byte(text)))
			_, err := throughJSONB(t, pool, []byte(text))
			require.NoError(t, err)
		}
	}
	require.ErrorIs(t, checkJSON([]byte(strings.Repeat("[", maxJSONDepth+1)+strings.Repeat("]", maxJSONDepth+1))), ErrPayloadInvalid)
	require.NoError(t, checkJSON([]byte("["+strings.Repeat("[],", 5000)+"0]")), "brackets that are closed again are not depth")
}

// Without a bound on what numbers grow to, a payload of a few KiB could be stored and never be read again: a
// claim of it would fail for ever, and with it every claim of its namespace.
func TestCheckJSONBoundsWhatNumbersGrowTo(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	most := "[" + strings.Repeat("1e131071,", MaxPayloadBytes/131072-1) + "1e131000]"
	require.NoError(t, checkJSON([]byte(most)))
	out, err := throughJSONB(t, pool, []byte(most))
	require.NoError(t, err)
	require.LessOrEqual(t, len(out), MaxPayloadBytes+len(most)*2)
	require.ErrorIs(t, checkJSON([]byte("["+strings.Repeat("1e131071,", 9)+"0]")), ErrPayloadTooLarge)
	require.ErrorIs(t, checkJSON([]byte("["+strings.Repeat("1e-16000,", 100)+"0]")), ErrPayloadTooLarge)
	floats := make([]float64, 1000)
	for i := range floats {
		floats[i] = math.MaxFloat64
	}
	text, err := json.Marshal(floats)
	require.NoError(t, err)
	require.NoError(t, checkJSON(text), "a thousand of the largest floats are no abuse")
}

func TestCheckJSONNeverQuotes(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"card":"4111`, `"4111\u0000"`, `"4111\ud800"`, `[4111e999999]`, "\"4111\xff\"", strings.Repeat("[", 2000) + "4111" + strings.Repeat("]", 2000)} {
		err := checkJSON([]byte(text))
		require.ErrorIs(t, err, ErrPayloadInvalid)
		require.NotContains(t, err.Error(), "4111")
	}
}

func FuzzCheckJSON(f *testing.F) {
	for _, seed := range []string{
		`null`, `true`, `{}`, `[]`, `""`, `0`, `-0`, `-0.0e-0`, `1e5`, `1E+5`, `1e-5`, `9223372036854775807`, `-9223372036854775808`,
		`18446744073709551616`, `0.1`, `1.7976931348623157e308`, `5e-324`, `1e131071`, `1e131072`, `1e-16383`, `1e-16384`, `0e999999`, `0e-999999`,
		`0.0000e20000`, `1e0000000000000001`, `1e2147483647`, `1e-2147483648`, `"\u0000"`, `"\u0001"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00"`, `"\ud83d\u0041"`,
		`"\\ud83d"`, `"\\\ud83d"`, `"\/\b\f\n\r\t\""`, `{"a":{"b":[1,2,{"c":null}]}}`, `{"a":1,"a":2}`, `{"":0}`, "\"\u2028\"", "\"\xed\xa0\x80\"", "\"\xff\"",
		" \t\r\n1 ", `1 2`, `{"a"`, `[1,]`, "\ufeff1", strings.Repeat("[", 1001) + strings.Repeat("]", 1001), strings.Repeat("[", 100) + strings.Repeat("]", 100),
	} {
		f.Add([]byte(seed))
	}
	pool := pgtest.Database(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<16 || checkJSON(text) != nil {
			return
		}
		out, err := throughJSONB(t, pool, text)
		require.NoError(t, err, "%q", text)
		require.Equal(t, exact(t, text), exact(t, []byte(out)), "%q", text)
	})
}

// exact decodes text without rounding: numbers become reduced fractions.
func exact(t testing.TB, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	return reduced(v)
}

func reduced(v any) any {
	switch v := v.(type) {
	case json.Number:
		if r, ok := new(big.Rat).SetString(string(v)); ok {
			return r.RatString()
		}
		// math/big gives up on exponents beyond its bounds, which only a zero has here.
		return "0"
	case []any:
		for i := range v {
			v[i] = reduced(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = reduced(v[k])
		}
	}
	return v
}

// drawValue returns a random JSON value of Go types.
func drawValue(t *rapid.T, depth int) any {
	kinds := 6
	if depth > 0 {
		kinds = 8
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{1<<53 + 1, -1<<53 - 1, math.MaxInt64, math.MinInt64, 0})).Draw(t, "int")
	case 1:
		return rapid.Float64().Filter(func(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }).Draw(t, "float")
	case 2:
		return strings.ReplaceAll(rapid.String().Draw(t, "string"), "\x00", "")
	case 3:
		return rapid.Bool().Draw(t, "bool")
	case 4:
		return nil
	case 5:
		return rapid.Uint64().Draw(t, "uint")
	case 6:
		list := make([]any, rapid.IntRange(0, 4).Draw(t, "len"))
		for i := range list {
			list[i] = drawValue(t, depth-1)
		}
		return list
	}
	object := map[string]any{}
	for range rapid.IntRange(0, 4).Draw(t, "len") {
		object[strings.ReplaceAll(rapid.String().Draw(t, "key"), "\x00", "")] = drawValue(t, depth-1)
	}
	return object
}

// What Go can encode and check accepts reaches the handler without a digit lost.
func TestPayloadRoundTripIsExact(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s, err := NewStore(pool, StoreConfig{Namespace: "test"})
	require.NoError(t, err)
	rapid.Check(t, func(rt *rapid.T) {
		value := drawValue(rt, 3)
		payload, err := json.Marshal(value)
		require.NoError(rt, err)
		require.NoError(rt, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := Enqueue(t.Context(), tx, "", Message{Namespace: "test", Topic: "any", Payload: payload})
			return err
		}), "%s", payload)
		claimed, err := s.Claim(t.Context(), ClaimConfig{})
		require.NoError(rt, err)
		require.Len(rt, claimed, 1)
		_, err = s.Ack(t.Context(), claimed...)
		require.NoError(rt, err)
		require.Equal(rt, exact(t, payload), exact(t, claimed[0].Payload), "%s", payload)
		if n, ok := value.(int64); ok {
			var got int64
			require.NoError(rt, json.Unmarshal(claimed[0].Payload, &got))
			require.Equal(rt, n, got)
		}
		if f, ok := value.(float64); ok {
			var got float64
			require.NoError(rt, json.Unmarshal(claimed[0].Payload, &got))
			require.InDelta(rt, f, got, 0, "bit for bit but for the sign of zero")
		}
	})
}

func TestIntegersBeyond2To53ReachTheHandlerExactly(t *testing.T) {
	t.Parallel()
	type numbers struct {
		A, B int64
		C    float64
		D    json.RawMessage
		E    map[string]int64
	}
	pool := pgtest.Database(t)
	topic := Topic[numbers]{Namespace: "test", Name: "numbers"}
	want := numbers{A: math.MaxInt64, B: math.MinInt64, C: 0.1, D: []byte("123456789012345678901234567890.5"), E: map[string]int64{"x": 1<<53 + 1}}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := topic.Enqueue(t.Context(), tx, want)
		return err
	}))
	s, err := NewStore(pool, StoreConfig{Namespace: "test"})
	require.NoError(t, err)
	claimed, err := s.Claim(t.Context(), ClaimConfig{})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	var got numbers
	require.NoError(t, json.Unmarshal(claimed[0].Payload, &got))
	require.Equal(t, want, got)
	require.Contains(t, string(claimed[0].Payload), fmt.Sprint(int64(math.MinInt64)))
}
