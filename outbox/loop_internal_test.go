package outbox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutdatedAnswerOfTheDoorbell: the dispatcher asked, found work, stopped watching, and only then reads the
// answer. Were it to count, the dispatcher would next fall asleep while nobody watches.
func TestOutdatedAnswerOfTheDoorbell(t *testing.T) {
	t.Parallel()
	l := &loop{d: &Dispatcher{}, wish: 2}
	l.heed(bellAnswer{wish: 1, state: bellWatches})
	require.False(t, l.watched)
	require.False(t, l.hungry)
	l.heed(bellAnswer{wish: 2, state: bellWatches})
	require.True(t, l.watched)
	require.True(t, l.hungry, "look once more")
	l.heed(bellAnswer{state: bellGone})
	require.False(t, l.watched, "whatever was wished")
}
