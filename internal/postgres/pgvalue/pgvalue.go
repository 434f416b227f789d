// Package pgvalue turns values of Go into those of PostgreSQL that pgx sends.
package pgvalue

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// UUID returns id, never NULL.
func UUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// NullUUID returns id, or NULL.
func NullUUID(id uuid.NullUUID) pgtype.UUID { return pgtype.UUID{Bytes: id.UUID, Valid: id.Valid} }

// UUIDs returns ids, never NULL.
func UUIDs(ids []uuid.UUID) []pgtype.UUID {
	converted := make([]pgtype.UUID, len(ids)) // never nil: for SQL, NULL means unknown and not none
	for i, id := range ids {
		converted[i] = UUID(id)
	}
	return converted
}

// Time turns the zero time into NULL.
func Time(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()} }

// Clamp returns the time nearest to t that timestamptz can hold, and the zero time as it is: a nack must never fail for
// its time.
func Clamp(t time.Time) time.Time {
	switch {
	case t.IsZero():
		return t
	case t.Before(firstTime):
		return firstTime
	case t.After(lastTime):
		return lastTime
	}
	return t
}

var (
	firstTime = time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
)

// Interval returns d in whole microseconds.
func Interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// Limit turns 0, which means the limit of the row, into NULL.
func Limit(n int) *int32 {
	if n == 0 {
		return nil
	}
	limit := int32(n)
	return &limit
}
