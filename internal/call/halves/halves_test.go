package halves_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/halves"
)

// search plays a search among n events. Calls with a culprit fail.
func search(t *testing.T, n int, culprits map[int]bool) (calls int, passed, found map[int]bool, left []int) {
	t.Helper()
	events := make([]int, n)
	for i := range events {
		events[i] = i
	}
	calls, passed, found = 1, make(map[int]bool), make(map[int]bool)
	s := halves.New(events)
	for some := s.Next(); some != nil; some = s.Next() {
		calls++
		require.True(t, slices.IsSorted(some), "the order of the events is kept: %v", some)
		if slices.ContainsFunc(some, func(i int) bool { return culprits[i] }) {
			if s.Failed() {
				require.Len(t, some, 1)
				found[some[0]] = true
			}
			continue
		}
		for _, i := range some {
			require.False(t, passed[i], "event %d passes twice", i)
			passed[i] = true
		}
		s.Passed()
	}
	return calls, passed, found, s.Left()
}

// TestOneCulprit: for each size, wherever the culprit is, the calls are bounded, and all others are called with success
// once.
func TestOneCulprit(t *testing.T) {
	t.Parallel()
	for n := 2; n <= 1000; n++ {
		some := []int{0, n / 2, n - 1, rand.IntN(n), rand.IntN(n)}
		if n <= 130 {
			some = nil
			for i := range n {
				some = append(some, i)
			}
		}
		for _, culprit := range some {
			calls, passed, found, left := search(t, n, map[int]bool{culprit: true})
			require.LessOrEqual(t, calls, halves.Calls(n), "%d of %d", culprit, n)
			require.Equal(t, map[int]bool{culprit: true}, found)
			require.Len(t, passed, n-1)
			require.Empty(t, left)
		}
	}
	require.Equal(t, 12, halves.Calls(500))
}

// TestSeveralCulprits: each event is found, passes or is left, within the limit.
func TestSeveralCulprits(t *testing.T) {
	t.Parallel()
	for range 3000 {
		n := 2 + rand.IntN(600)
		culprits := make(map[int]bool)
		for range 1 + rand.IntN(1+rand.IntN(n)) {
			culprits[rand.IntN(n)] = true
		}
		calls, passed, found, left := search(t, n, culprits)
		require.LessOrEqual(t, calls, halves.Limit(n))
		require.True(t, slices.IsSorted(left))
		require.Equal(t, n, len(passed)+len(found)+len(left))
		for i := range found {
			require.True(t, culprits[i])
		}
		if len(culprits) <= 4 {
			require.Empty(t, left, "%d culprits among %d are found", len(culprits), n)
		}
		require.NotEmpty(t, found)
	}
}

// TestAnswered: a call that answers for each of its events says nothing of the others.
func TestAnswered(t *testing.T) {
	t.Parallel()
	s := halves.New([]int{1, 2, 3, 4, 5, 6})
	require.Equal(t, []int{1, 2, 3}, s.Next())
	require.False(t, s.Failed())
	require.Equal(t, []int{1, 2}, s.Next())
	require.Equal(t, []int{1, 2, 3, 4, 5, 6}, s.Left())
	s.Answered()
	require.Equal(t, []int{3, 4, 5, 6}, s.Next())
	s.Answered()
	require.Nil(t, s.Next())
	require.Empty(t, s.Left())
}

// TestNoCulprit: a call that fails by chance leaves nothing behind.
func TestNoCulprit(t *testing.T) {
	t.Parallel()
	calls, passed, found, left := search(t, 500, nil)
	require.LessOrEqual(t, calls, halves.Calls(500))
	require.Len(t, passed, 500)
	require.Empty(t, found)
	require.Empty(t, left)
}
