package outbox

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

func pgUUID(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

func pgNullUUID(id uuid.NullUUID) pgtype.UUID { return pgtype.UUID{Bytes: id.UUID, Valid: id.Valid} }

func pgUUIDs(ids []uuid.UUID) []pgtype.UUID {
	converted := make([]pgtype.UUID, len(ids)) // never nil: SQL takes NULL for unknown, not for none
	for i, id := range ids {
		converted[i] = pgUUID(id)
	}
	return converted
}

// pgTime turns the zero time into NULL.
func pgTime(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()} }

// clampTime brings t to what timestamptz can hold: a nack must never fail for its time.
func clampTime(t time.Time) time.Time {
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

func pgInterval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// pgLimit turns 0, which means the limit of the row, into NULL.
func pgLimit(n int) *int32 {
	if n == 0 {
		return nil
	}
	limit := int32(n)
	return &limit
}
