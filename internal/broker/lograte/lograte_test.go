package lograte

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limit returns a Limit with a clock of its own, and a function that returns what was logged since the last call.
func limit() (l *Limit, now *time.Time, logged func() string) {
	var out bytes.Buffer
	l = New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
	clock := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	now = &clock
	l.now = func() time.Time { return *now }
	return l, now, func() string {
		defer out.Reset()
		return out.String()
	}
}

func TestALineIsRepeatedOncePerMinute(t *testing.T) {
	t.Parallel()
	l, now, logged := limit()
	warn := func(text string) { l.Log(context.Background(), slog.LevelWarn, text, "broker", 1) }
	for range 3 {
		warn("away")
	}
	require.Equal(t, "level=WARN msg=away broker=1\n"+strings.Repeat("level=DEBUG msg=away broker=1\n", 2), logged())
	warn("other")
	l.Log(context.Background(), slog.LevelError, "away")
	l.About("two").Log(context.Background(), slog.LevelWarn, "away")
	require.Equal(t, "level=WARN msg=other broker=1\nlevel=ERROR msg=away\nlevel=WARN msg=away\n", logged(), "other lines")
	l.About("two").Log(context.Background(), slog.LevelWarn, "away")
	require.Equal(t, "level=DEBUG msg=away\n", logged())
	*now = now.Add(every)
	warn("away")
	require.Equal(t, "level=WARN msg=away broker=1 not_logged=2\n", logged())
	*now = now.Add(every)
	warn("away")
	require.Equal(t, "level=WARN msg=away broker=1\n", logged())
	l.Log(context.Background(), slog.LevelDebug, "detail")
	l.Log(context.Background(), slog.LevelDebug, "detail")
	require.Equal(t, "level=DEBUG msg=detail\nlevel=DEBUG msg=detail\n", logged())
}

// Any number of customers may be unreachable.
func TestLinesAreBounded(t *testing.T) {
	t.Parallel()
	l, now, _ := limit()
	for i := range 5 * maxLines {
		l.About(fmt.Sprint(i)).Log(context.Background(), slog.LevelWarn, "away")
		*now = now.Add(time.Millisecond)
		require.LessOrEqual(t, len(l.lines), maxLines)
	}
}
