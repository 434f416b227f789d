package growth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// TestGrowth: there is more room while events are done fast, less again when they are not, and the usual room for a while after
// Reset.
func TestGrowth(t *testing.T) {
	t.Parallel()
	g, now := Growth{Room: 10, Steps: 2, Time: 30 * time.Millisecond}, start
	done := func(after time.Duration, n int) int {
		now = now.Add(after)
		g.Done(now, n, n*1000)
		return g.Size(10)
	}
	require.Equal(t, 10, done(0, 20), "nobody knows how fast they are")
	require.Equal(t, 10, done(g.Time/2, 10))
	require.Equal(t, 20, done(g.Time/2, 10))
	require.Equal(t, 4, g.Size(2), "of any number")
	require.Equal(t, 20, done(g.Time/2, 39))
	require.Equal(t, 40, done(g.Time/2, 1))
	require.Equal(t, 40, done(g.Time, 40), "no more than that")
	require.Equal(t, 40, done(g.Time, 39))
	require.Equal(t, 20, done(1, 1), "they have become slow")
	require.Equal(t, 10, done(g.Time+1, 40), "and stay so")
	require.Equal(t, 10, done(g.Time+1, 40))
	require.Equal(t, 20, done(g.Time, 20))
	g.Reset(now)
	require.Equal(t, 10, g.Size(10))
	require.Equal(t, 10, done(g.Time, 20))
	now = now.Add(Pause - 2*g.Time)
	done(0, 20)
	require.Equal(t, 20, done(g.Time, 20), "that was a while ago")
}

// TestGrowthOfLargeEvents: the more bytes an event has, the less room there is, but never less than usual.
func TestGrowthOfLargeEvents(t *testing.T) {
	t.Parallel()
	now := start
	size := func(g *Growth, bytes int) int {
		for range 4 {
			g.Done(now, g.Room<<g.Steps, bytes*g.Room<<g.Steps)
		}
		return g.Size(g.Room)
	}
	for _, c := range []struct{ bytes, want int }{
		{0, 800}, {200, 800}, {10 << 10, 800}, {64 << 10, 128}, {100 << 10, 100}, {1 << 20, 100}, {16 << 20, 100},
	} {
		g := Relay(100)
		require.Equal(t, c.want, size(&g, c.bytes), "%d bytes", c.bytes)
		require.Equal(t, c.want/2, g.Size(50), "%d bytes", c.bytes)
	}
	g := Relay(100)
	require.Equal(t, 128, size(&g, 64<<10))
	g.Done(now, 1, 100)
	require.Less(t, g.Size(100), 200, "one small event does not say that the next ones are")
	for range 50 {
		g.Done(now, 1, 100)
	}
	require.Equal(t, 800, g.Size(100))
	none := Growth{}
	none.Done(now, 1<<20, 0)
	none.Done(now, 1<<20, 0)
	require.Equal(t, 7, none.Size(7))
}
