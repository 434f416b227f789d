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

// The end of an error says why, and its beginning may repeat other columns.
func TestReasons(t *testing.T) {
	t.Parallel()
	require.Empty(t, reason(""))
	require.Equal(t, "a b c", reason(" a\n\tb\r\x1b\u202e c\x00"))
	for _, prefix := range []string{
		"consume users/user_renamed version 1, event 01a2091f-7641-7c00-8000-0123456789ab: ", "consume users/user_renamed version 12: ", "consume users: ",
	} {
		require.Equal(t, "no card of user 17", reason(prefix+"no card of user 17"))
		require.Equal(t, "first", reason(prefix+"first\n"+strings.Repeat("stack ", 100)))
	}
	customer := `post event to "22222222-0000-7000-8000-000000000000" at 10.0.0.1:8080: 10.0.0.1 is not a public address`
	require.Equal(t, customer, reason(customer))
	require.Equal(t, strings.Repeat("ü", 200), reason(strings.Repeat("ü", 200)))
	require.Equal(t, strings.Repeat("ü", 98)+"..."+strings.Repeat("é", 99), reason(strings.Repeat("ü", 150)+strings.Repeat("é", 150)))
}
