package receive

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLeftOutLinesAreCounted: the first line of a new period says how many were left out before it, and the next one does not.
func TestLeftOutLinesAreCounted(t *testing.T) {
	t.Parallel()
	r := &Receiver{}
	written := 0
	for range talkLines + 3 {
		attrs, ok := r.attrs(&item{})
		if ok {
			written++
		}
		require.NotContains(t, attrs, "lines_left_out")
	}
	require.Equal(t, talkLines, written)
	r.say.period = time.Time{}
	attrs, ok := r.attrs(&item{})
	require.True(t, ok)
	require.Equal(t, []any{"lines_left_out", 3}, attrs[len(attrs)-2:])
	attrs, ok = r.attrs(&item{})
	require.True(t, ok)
	require.NotContains(t, attrs, "lines_left_out")
}
