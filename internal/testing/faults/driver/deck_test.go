package driver

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDeck: a seed decides the faults and their order, each kind happens, and a release has the shares that it must have.
func TestDeck(t *testing.T) {
	t.Parallel()
	all := kinds()
	require.GreaterOrEqual(t, len(all), 40)
	draw := func(n int, seed uint64) (counts map[string]int, order []string) {
		counts = make(map[string]int)
		for _, f := range deck(all, n, rand.New(rand.NewPCG(seed, 1))) {
			counts[f.kind]++
			order = append(order, f.kind)
		}
		require.GreaterOrEqual(t, len(order), n)
		return counts, order
	}
	for _, n := range []int{100, 150, 2000} {
		counts, order := draw(n, 7)
		require.Len(t, counts, len(all), "each kind happens in %d faults", n)
		require.Less(t, len(order), n*11/10)
		_, again := draw(n, 7)
		require.Equal(t, order, again)
		_, other := draw(n, 8)
		require.NotEqual(t, order, other)
	}
	counts, _ := draw(2000, 7)
	sum := func(kinds ...string) (n int) {
		for _, k := range kinds {
			require.Positive(t, counts[k], k)
			n += counts[k]
		}
		return n
	}
	require.Equal(t, 500, sum("kill a worker", "kill a writer", "kill a consumer"))
	require.Equal(t, 300, sum("stop a worker past its leases", "stop a consumer", "stop a writer"))
	require.Equal(t, 100, sum("immediate restart"))
	require.Equal(t, 1000, sum("cut after k bytes of replies", "cut after k bytes of requests", "cut between NATS and its clients"))
	for kind, n := range counts {
		require.GreaterOrEqual(t, n, 4, kind)
	}
	few, order := draw(20, 7)
	require.Len(t, order, 20)
	require.Len(t, few, 20, "as many kinds as there are faults")
}
