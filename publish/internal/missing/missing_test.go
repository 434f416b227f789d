package missing_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish/internal/missing"
)

var errGone = errors.New("no such topic")

func TestMissingForTooLong(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	d := missing.Destinations{Timeout: time.Minute, Now: func() time.Time { return now }}
	waits := func(destination string) bool {
		err := d.Missing(destination, errGone)
		require.ErrorIs(t, err, errGone)
		require.NotEqual(t, outbox.IsUnavailable(err), outbox.IsPermanent(err))
		return outbox.IsUnavailable(err)
	}
	require.True(t, waits("a"))
	require.EqualError(t, d.Missing("a", errGone), "no such topic (otherwise its events become dead letters from 2026-11-21T12:01:00Z on)")
	now = now.Add(59 * time.Second)
	require.True(t, waits("a"))
	require.True(t, waits("b"), "each destination has its own time")
	now = now.Add(time.Second)
	require.False(t, waits("a"))
	require.True(t, waits("b"))
	require.EqualError(t, d.Missing("a", errGone), "no such topic (for longer than 1m0s)")
	require.False(t, waits("a"), "until there is another outcome")
	d.Forget("a")
	require.True(t, waits("a"))
	now = now.Add(2 * time.Hour)
	require.True(t, waits("a"), "no event for a long time: it may not have been missing all the time")
}

func TestMissingIsRefusedImmediately(t *testing.T) {
	t.Parallel()
	d := missing.Destinations{Timeout: -1}
	err := d.Missing("a", errGone)
	require.True(t, outbox.IsPermanent(err))
	require.EqualError(t, err, "no such topic")
}

// TestMissingHoweverLong: without a Timeout a destination that is missing makes no dead letter.
func TestMissingHoweverLong(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	d := missing.Destinations{Now: func() time.Time { return now }}
	for range 1000 {
		err := d.Missing("a", errGone)
		require.True(t, outbox.IsUnavailable(err))
		require.EqualError(t, err, "no such topic (since 2026-11-21T12:00:00Z; its events wait)")
		now = now.Add(59 * time.Minute)
	}
}
