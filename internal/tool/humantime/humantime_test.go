package humantime_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/tool/humantime"
)

func TestParse(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 2, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"90m":                       now.Add(-90 * time.Minute),
		"0s":                        now,
		"2026-05-01":                time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC),
		"2026-05-01 06:30:00":       time.Date(2026, 5, 1, 6, 30, 0, 0, time.UTC),
		"2026-05-01 06:30":          time.Date(2026, 5, 1, 6, 30, 0, 0, time.UTC),
		"2026-05-01T06:30":          time.Date(2026, 5, 1, 6, 30, 0, 0, time.UTC),
		"2026-05-01T06:30:00":       time.Date(2026, 5, 1, 6, 30, 0, 0, time.UTC),
		"2026-05-01T06:30:00.25Z":   time.Date(2026, 5, 1, 6, 30, 0, 250_000_000, time.UTC),
		"2026-05-01T06:30:00+02:00": time.Date(2026, 5, 1, 4, 30, 0, 0, time.UTC),
	} {
		got, err := humantime.Parse(text, now)
		require.NoError(t, err, text)
		require.True(t, want.Equal(got), "%s: %s", text, got)
	}
	for _, text := range []string{"", "-90m", "90", "yesterday", "2026-13-01", "2026-02-30", "0000-01-01", "start"} {
		_, err := humantime.Parse(text, now)
		require.ErrorContains(t, err, " is not a valid time: use a time like 2026-05-01T12:00:00Z or 2026-05-01 (UTC), or an age like 90m", text)
	}
}
