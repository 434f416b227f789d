package queue

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// columns are starts, for SQL.
type columns struct {
	lanes          []int16
	dues           []pgtype.Timestamptz
	ids            []pgtype.UUID
	quotas, pieces []int32
}

func columnsOf(starts []core.Start) (c columns) {
	for _, s := range starts {
		due := pgvalue.Time(s.After.Due)
		if !due.Valid {
			due = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
		}
		c.lanes, c.dues, c.ids = append(c.lanes, s.Lane), append(c.dues, due), append(c.ids, pgvalue.UUID(s.After.ID))
		c.quotas, c.pieces = append(c.quotas, int32(s.Quota)), append(c.pieces, int32(s.Piece))
	}
	return c
}

// Cursor is how far the claims of a Store have come. The zero value is the beginning. It must not be used concurrently.
type Cursor struct {
	walk   core.Walk
	paused *core.Pauses // what the walk has passed over
}

// Done reports whether the claims have come to the events that are not due.
func (c *Cursor) Done() bool { return !c.walk.More() }
