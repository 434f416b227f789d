package backoff

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDelayIsWhatDoublingGives(t *testing.T) {
	t.Parallel()
	for attempt, want := range map[int]time.Duration{-1: 1, 0: 1, 1: 1, 2: 2, 3: 4, 9: 256, 10: 300, 34: 300, 63: 300, 64: 300, 65: 300, math.MaxInt32: 300} {
		for range 1000 {
			d := Delay(time.Second, 300*time.Second, attempt)
			require.GreaterOrEqual(t, d, want*time.Second/2, attempt)
			require.LessOrEqual(t, d, want*time.Second, attempt)
		}
	}
	// A pause after an error of the database is never longer than LongestPause, which keeps the first delivery within
	// two seconds of the database's return.
	var pauses Retrier
	for range 100 {
		require.LessOrEqual(t, pauses.Next(), LongestPause)
	}
	require.LessOrEqual(t, 2*LongestPause, 2*time.Second)
	// Jitter uses the whole upper half.
	least, most := time.Duration(math.MaxInt64), time.Duration(0)
	for range 10_000 {
		d := Delay(time.Second, time.Minute, 1)
		least, most = min(least, d), max(most, d)
	}
	require.Less(t, least, 510*time.Millisecond)
	require.Greater(t, most, 990*time.Millisecond)
	rapid.Check(t, func(t *rapid.T) {
		base := time.Duration(rapid.Int64Range(1, math.MaxInt64).Draw(t, "base"))
		limit := time.Duration(rapid.Int64Range(1, math.MaxInt64).Draw(t, "limit"))
		for range 1000 {
			attempt := rapid.IntRange(1, math.MaxInt32).Draw(t, "attempt")
			if rapid.Bool().Draw(t, "small") {
				attempt = attempt%70 + 1
			}
			want := boundsOf(base, limit, attempt)
			d := Delay(base, limit, attempt)
			if d < want.low || d > want.high {
				t.Fatalf("Delay(%d, %d, %d) = %d, not in [%d, %d]", base, limit, attempt, d, want.low, want.high)
			}
		}
	})
}

// bounds are computed by doubling step by step, without shifts.
type bounds struct{ low, high time.Duration }

func boundsOf(base, limit time.Duration, attempt int) bounds {
	high := min(base, limit)
	for range min(attempt-1, 64) {
		if high > limit-high {
			high = limit
			break
		}
		high *= 2
	}
	return bounds{high / 2, high}
}

func TestDelayStaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	for _, base := range []time.Duration{1, time.Millisecond, time.Second, 7 * time.Hour} {
		for _, limit := range []time.Duration{1, time.Second, 5 * time.Minute, 24 * time.Hour, 1<<63 - 1} {
			for _, attempt := range []int{-1, 0, 1, 2, 3, 10, 33, 34, 35, 62, 63, 64, 65, 1 << 20, 1<<31 - 1} {
				want := limit
				for d, n := base, 1; d <= limit; d, n = 2*d, n+1 {
					if n >= attempt {
						want = d
						break
					}
					if d > limit/2 {
						break
					}
				}
				for range 20 {
					d := Delay(base, limit, attempt)
					require.GreaterOrEqual(t, d, want/2, "base %s limit %s attempt %d", base, limit, attempt)
					require.LessOrEqual(t, d, want, "base %s limit %s attempt %d", base, limit, attempt)
				}
			}
		}
	}
}

// TestPollsComeNoLaterThanAskedFor: jitter only shortens the interval, because PollInterval and MaxPollInterval bound
// the latency.
func TestPollsComeNoLaterThanAskedFor(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{0, 1, 4, time.Millisecond, 10 * time.Second, 1 << 62} {
		least := d
		for range 1000 {
			got := Within(d)
			require.LessOrEqual(t, got, d)
			require.GreaterOrEqual(t, got, d-d/5)
			least = min(least, got)
		}
		if d > time.Microsecond {
			require.Less(t, least, d-d/10, "they are spread")
		}
	}
}
