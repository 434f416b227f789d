package pgtest

import (
	"bytes"
	"encoding/json"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

// ExactJSON decodes text without rounding, to compare what jsonb gives back: numbers become reduced fractions.
func ExactJSON(t testing.TB, text []byte) any {
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
		// math/big rejects exponents beyond its bounds, which only a zero has here.
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
