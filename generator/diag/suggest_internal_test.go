package diag

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"a", "", 1}, {"turn_di", "turn_id", 1}, {"turn", "turn_id", 3},
		{"paylod", "payload", 1}, {"abcd", "badc", 2}, {"kitten", "sitting", 3}, {"aab", "ab", 1},
	} {
		require.Equal(t, c.want, distance(c.a, c.b, 10), "%q %q", c.a, c.b)
		require.Equal(t, c.want, distance(c.b, c.a, 10), "%q %q", c.b, c.a)
	}
}

// A limit caps the answer and does not change it otherwise.
func TestDistanceStopsAtItsLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[abc]{0,8}`)
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		whole := distance(a, b, 100)
		for limit := range 10 {
			require.Equal(t, min(whole, limit), distance(a, b, limit))
		}
	})
}
