package admin

import "time"

// WithPinned returns cfg with a bound for slots and standbys.
func (c DoctorConfig) WithPinned(xids int64) DoctorConfig {
	c.pinned = xids
	return c
}

// ClockFinding is clockFinding.
func ClockFinding(before, after, there time.Time) []Finding {
	return clockFinding(before, after, there)
}
