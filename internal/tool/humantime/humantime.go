// Package humantime reads times as people type them, for the commands and the dashboard.
package humantime

import (
	"fmt"
	"time"
)

// layouts are those of a time without a zone, which is UTC, and RFC 3339. Browsers send minutes with a T.
var layouts = []string{
	time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04", time.DateOnly,
}

// Parse returns the time that text means: a time, a day, or an age before now, like 90m. Its error quotes text and says
// what to use.
func Parse(text string, now time.Time) (time.Time, error) {
	if age, err := time.ParseDuration(text); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	for _, layout := range layouts {
		if t, err := time.Parse(layout, text); err == nil && t.Year() > 0 {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf(
		"%q is not a valid time: use a time like 2026-05-01T12:00:00Z or 2026-05-01 (UTC), or an age like 90m", text)
}
