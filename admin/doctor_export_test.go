package admin

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// WithPinned returns cfg with a bound for slots and standbys.
func (c DoctorConfig) WithPinned(xids int64) DoctorConfig {
	c.pinned = xids
	return c
}

// ClockFinding is clockFinding.
func ClockFinding(before, after, there time.Time) []Finding {
	return clockFinding(before, after, there)
}

// DoctorOne runs one check, as Doctor does.
func (a *Admin) DoctorOne(ctx context.Context, name string, pool *pgxpool.Pool) ([]Finding, error) {
	own := *a
	own.pool = pool
	e := &examination{Admin: &own, cfg: DoctorConfig{OldTransaction: oldDefault, pinned: pinnedXIDs}}
	for _, c := range doctorChecks() {
		if c.name == name {
			return c.run(ctx, e)
		}
	}
	panic(name)
}
