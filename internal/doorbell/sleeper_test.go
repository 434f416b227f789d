package doorbell

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOutdatedAnswerOfTheDoorbell: the owner sends a request, finds work, stops watching, and only then reads the
// answer. If that answer counted, the owner would sleep while nobody watches.
func TestOutdatedAnswerOfTheDoorbell(t *testing.T) {
	t.Parallel()
	s := NewSleeper(&Config{}, time.Hour, time.Hour)
	require.False(t, s.Idle())
	s.Busy()
	require.False(t, s.Idle())
	look, _ := s.OnAnswer(Answer{request: 1, state: bellWatches})
	require.False(t, look)
	require.False(t, s.Idle())
	look, _ = s.OnAnswer(Answer{request: 3, state: bellWatches})
	require.True(t, look, "check once more")
	require.True(t, s.Idle())
	look, _ = s.OnAnswer(Answer{state: bellGone})
	require.True(t, look, "whatever was asked")
	require.False(t, s.Idle())
}
