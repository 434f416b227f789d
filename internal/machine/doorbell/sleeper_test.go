package doorbell

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/sleep"
)

// TestOutdatedAnswerOfTheDoorbell: the owner sends a request, finds work, stops watching, and only then reads the
// answer. If that answer counted, the owner would sleep while nobody watches.
func TestOutdatedAnswerOfTheDoorbell(t *testing.T) {
	t.Parallel()
	s := NewSleeper(&Config{}, time.Hour, time.Hour)
	require.False(t, s.Idle())
	s.Busy()
	require.False(t, s.Idle())
	look, _ := s.OnAnswer(Answer{request: 1, state: sleep.Watches})
	require.False(t, look)
	require.False(t, s.Idle())
	look, _ = s.OnAnswer(Answer{request: 3, state: sleep.Watches})
	require.True(t, look, "check once more")
	require.True(t, s.Idle())
	look, _ = s.OnAnswer(Answer{state: sleep.Gone})
	require.True(t, look, "whatever was asked")
	require.False(t, s.Idle())
}

// TestPausesGrowOnlyWhileNothingIsFound: while a transaction that has enqueued is open, its owner checks again after a few
// milliseconds. The pauses grow only when nothing was found for a second.
func TestPausesGrowOnlyWhileNothingIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSleeper(&Config{}, time.Hour, time.Hour)
		defer s.Stop()
		refusedFor := func(d time.Duration) (longest time.Duration) {
			for began := time.Now(); time.Since(began) < d; {
				require.False(t, s.Idle())
				look, pause := s.OnAnswer(Answer{request: s.sleeper.Request(), state: sleep.Busy})
				require.True(t, look)
				require.GreaterOrEqual(t, pause, time.Millisecond)
				longest = max(longest, pause)
				<-time.After(pause)
			}
			return longest
		}
		for range 5 { // events are found, and another transaction is open
			require.LessOrEqual(t, refusedFor(900*time.Millisecond), 3*time.Millisecond)
			s.Found()
		}
		require.LessOrEqual(t, refusedFor(900*time.Millisecond), 3*time.Millisecond)
		longest := refusedFor(5 * time.Second)
		require.Greater(t, longest, 12*time.Millisecond, "nothing was found for a second")
		require.LessOrEqual(t, longest, 25*time.Millisecond)
		s.OnAnswer(Answer{request: s.sleeper.Request(), state: sleep.Watches}) // that transaction ended, and a new one is open
		s.OnRing(Ring{})
		require.LessOrEqual(t, refusedFor(900*time.Millisecond), 3*time.Millisecond)
	})
}
