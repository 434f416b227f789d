package jsonb

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/payload"
)

// throughJSONB returns what PostgreSQL makes of text.
func throughJSONB(t testing.TB, pool *pgxpool.Pool, text []byte) (string, error) {
	t.Helper()
	var out string
	err := pool.QueryRow(t.Context(), "SELECT $1::text::jsonb::text", string(text)).Scan(&out)
	return out, err
}

func TestCheckAtTheExactEdgesOfJSONB(t *testing.T) {
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
		require.NoError(t, Check([]byte(edge.in)), name)
		_, err := throughJSONB(t, pool, []byte(edge.in))
		require.NoError(t, err, name)
		require.ErrorIs(t, Check([]byte(edge.out)), payload.ErrInvalid, name)
		_, err = throughJSONB(t, pool, []byte(edge.out))
		require.Error(t, err, name)
	}
	for _, depth := range []int{1, maxDepth} {
		for _, text := range []string{
			strings.Repeat("[", depth) + strings.Repeat("]", depth),
			strings.Repeat(`{"a":`, depth) + "0" + strings.Repeat("}", depth),
		} {
			require.NoError(t, Check([]byte(text)))
			_, err := throughJSONB(t, pool, []byte(text))
			require.NoError(t, err)
		}
	}
	require.ErrorIs(t, Check([]byte(strings.Repeat("[", maxDepth+1)+strings.Repeat("]", maxDepth+1))), payload.ErrInvalid)
	require.NoError(t, Check([]byte("["+strings.Repeat("[],", 5000)+"0]")), "brackets that are closed again are not depth")
}

// Without a bound on what numbers grow to, a payload of a few KiB could be stored and never be read again: a
// claim of it would fail every time, and with it every claim of its namespace.
func TestCheckBoundsWhatNumbersGrowTo(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	most := "[" + strings.Repeat("1e131071,", MaxBytes/131072-1) + "1e131000]"
	require.NoError(t, Check([]byte(most)))
	out, err := throughJSONB(t, pool, []byte(most))
	require.NoError(t, err)
	require.LessOrEqual(t, len(out), MaxBytes+len(most)*2)
	require.ErrorIs(t, Check([]byte("["+strings.Repeat("1e131071,", 9)+"0]")), ErrTooLarge)
	require.ErrorIs(t, Check([]byte("["+strings.Repeat("1e-16000,", 100)+"0]")), ErrTooLarge)
	floats := make([]float64, 1000)
	for i := range floats {
		floats[i] = math.MaxFloat64
	}
	text, err := json.Marshal(floats)
	require.NoError(t, err)
	require.NoError(t, Check(text), "a thousand of the largest floats are accepted")
}

func TestCheckNeverQuotes(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"card":"4111`, `"4111\u0000"`, `"4111\ud800"`, `[4111e999999]`, "\"4111\xff\"", strings.Repeat("[", 2000) + "4111" + strings.Repeat("]", 2000)} {
		err := Check([]byte(text))
		require.ErrorIs(t, err, payload.ErrInvalid)
		require.NotContains(t, err.Error(), "4111")
	}
}

func FuzzCheck(f *testing.F) {
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
		if len(text) > 1<<16 || Check(text) != nil {
			return
		}
		out, err := throughJSONB(t, pool, text)
		require.NoError(t, err, "%q", text)
		require.Equal(t, pgtest.ExactJSON(t, text), pgtest.ExactJSON(t, []byte(out)), "%q", text)
	})
}
