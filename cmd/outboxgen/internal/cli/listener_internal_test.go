package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRewindTo(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 2, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{"start": {}, "90m": now.Add(-90 * time.Minute), "2026-05-01": time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)} {
		got, err := rewindTo(text, now)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "-90m", "START"} {
		_, err := rewindTo(text, now)
		require.ErrorContains(t, err, "--to", text)
	}
}

func TestAgeText(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]string{
		0: "0s", 59*time.Second + time.Millisecond: "59s", time.Minute: "1m0s", 59*time.Minute + 59*time.Second: "59m59s",
		time.Hour: "1h0m", 23*time.Hour + 59*time.Minute: "23h59m", 24 * time.Hour: "1d0h", 1000 * time.Hour: "41d16h",
	} {
		require.Equal(t, want, ageText(age))
	}
}

// An error of a handler may contain anything. A table shows one line of it, without characters that control a terminal.
func TestBriefErrors(t *testing.T) {
	t.Parallel()
	require.Empty(t, brief(""))
	require.Equal(t, "a b c", brief(" a\n\tb\r\x1b\u202e c\x00"))
	require.Equal(t, strings.Repeat("ü", 60), brief(strings.Repeat("ü", 60)))
	require.Equal(t, strings.Repeat("ü", 57)+"...", brief(strings.Repeat("ü", 61)))
}
