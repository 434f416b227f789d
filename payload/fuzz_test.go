package payload_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/payload"
)

// FuzzDate: a date is a day that exists, written as it is read, or is refused without being quoted.
func FuzzDate(f *testing.F) {
	for _, text := range []string{"2026-02-28", "2024-02-29", "2023-02-29", "0000-01-01", "9999-12-31", "10000-01-01", "2026-1-1", "2026-01-01T00:00:00Z"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := payload.ParseDate(text)
		if _, plain := time.Parse(time.DateOnly, text); plain != nil {
			require.Error(t, err)
		}
		if err != nil {
			require.Less(t, len(err.Error()), 120)
			return
		}
		require.Equal(t, text, d.String())
		require.NoError(t, d.Validate())
	})
}
