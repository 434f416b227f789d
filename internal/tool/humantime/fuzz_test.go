package humantime_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/tool/humantime"
)

// FuzzParse: a text is a time of the years 1 to 9999 that PostgreSQL can store, or is refused.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"90m", "2026-05-01", "2026-05-01T12:00:00Z", "2562047h47m16.854775807s", "-1h", "0000-01-01", "9999-12-31T23:59:59-23:59", "1e3h"} {
		f.Add(text)
	}
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		at, err := humantime.Parse(text, now)
		if err != nil {
			require.Less(t, len(err.Error()), 4*len(text)+200)
			return
		}
		require.True(t, 1 <= at.UTC().Year() && at.UTC().Year() <= 10000, "%s", at)
	})
}
