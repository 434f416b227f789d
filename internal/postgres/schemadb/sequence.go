package schemadb

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// ErrSequence says that the log does not number its events in the way that listeners need.
var ErrSequence = errors.New("listeners would lose events")

// CheckSequence checks three conditions on the numbers of events in the log of s: they are drawn one by one, they are
// drawn after the transaction has its xid, and they are higher than every number that the log or a listener has
// reached. If one does not hold, it returns an error that wraps ErrSequence and says what to do. behind reports that
// only the last one is violated. reached is the number that the sequence must be at.
func (s *Schema) CheckSequence(ctx context.Context, q *queries.Queries) (behind bool, reached int64, err error) {
	row, err := q.LogSequence(ctx)
	switch {
	case err != nil:
		return false, 0, fmt.Errorf("read sequence %s.log_seq: %w", s.quoted, err)
	case !row.Plain:
		return false, 0, fmt.Errorf("sequence %[1]s.log_seq does not draw its numbers one by one: %[2]w: "+
			"run `ALTER SEQUENCE %[1]s.log_seq INCREMENT 1 CACHE 1 NO CYCLE`, restart the producers, "+
			"then rewind the listeners to the time before (`outboxgen listener rewind`)", s.quoted, ErrSequence)
	case !row.Drawn:
		return false, 0, fmt.Errorf(
			"table %[1]s.log does not have the defaults of its migration: %[2]w: run `ALTER TABLE %[1]s.log "+
				"ALTER COLUMN xid SET DEFAULT pg_current_xact_id(), ALTER COLUMN seq SET DEFAULT "+
				"CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('%[1]s.log_seq') END`, "+
				"then rewind the listeners to the time before (`outboxgen listener rewind`)", s.quoted, ErrSequence)
	case row.Last >= 0 && row.Last < row.Reached:
		return true, row.Reached, fmt.Errorf("sequence %s.log_seq is at %d, but the log or a listener has reached %d: %w: "+
			"stop the listeners, then run `outboxgen listener rebase --yes`", s.quoted, row.Last, row.Reached, ErrSequence)
	}
	return false, row.Reached, nil
}
