package advisory

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLockHolds: without an answer of the database the lock counts for a limited time.
func TestLockHolds(t *testing.T) {
	t.Parallel()
	l := &Lock{valid: time.Minute, epoch: time.Now().Add(-time.Hour)}
	require.False(t, l.Holds())
	l.answers.Store(int64(59*time.Minute + 30*time.Second))
	require.True(t, l.Holds())
}
