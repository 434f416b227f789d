package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWhatEndsTheWait: a refusal ends it at once at the start, after 5 s with several addresses, and after the StartTimeout
// later. A server that is away ends it at the start only. Another trouble begins the time again.
func TestWhatEndsTheWait(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for _, c := range []struct {
		err               error
		several, answered bool
		after             time.Duration // 0 at once, negative never
	}{
		{err: ErrRefused}, {err: ErrTLS}, {err: ErrRefused, several: true, after: askTimeout},
		{err: ErrRefused, answered: true, after: time.Minute}, {err: ErrTLS, several: true, answered: true, after: time.Minute},
		{err: ErrNoStream, after: time.Minute}, {err: ErrNotStream, answered: true, after: time.Minute},
		{err: away, after: time.Minute}, {err: away, answered: true, after: -1},
	} {
		now := time.Now()
		tr := trouble{limit: time.Minute, several: c.several, answered: c.answered}
		another := ErrNoStream
		if c.err == ErrNoStream {
			another = ErrNotStream
		}
		require.NoError(t, tr.note(another, now.Add(-time.Hour)))
		if c.after != 0 {
			require.NoError(t, tr.note(c.err, now), "%v", c)
			require.NoError(t, tr.note(c.err, now.Add(max(c.after, time.Second)-time.Millisecond)), "%v", c)
		}
		if c.after < 0 {
			require.NoError(t, tr.note(c.err, now.Add(24*time.Hour)))
			continue
		}
		require.ErrorIs(t, tr.note(c.err, now.Add(c.after)), c.err, "%v", c)
	}
}
