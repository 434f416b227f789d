package dbschema

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
)

// ErrSequence: the log does not number its events as listeners need it.
var ErrSequence = errors.New("listeners would lose events")

// CheckSequence returns an error that wraps ErrSequence, and says what to do, when events of the log of s are not numbered one
// by one, after their transaction has its xid, and above all that the log or a listener has come to. behind tells that
// the last is all that is wrong, and reached what the sequence has to be at.
func (s *Schema) CheckSequence(ctx context.Context, q *dbsqlc.Queries) (behind bool, reached int64, err error) {
	row, err := q.LogSequence(ctx)
	switch {
	case err != nil:
		return false, 0, fmt.Errorf("read sequence %s.log_seq: %w", s.quoted, err)
	case !row.Plain:
		return false, 0, fmt.Errorf("sequence %[1]s.log_seq does not draw its numbers one by one: %[2]w: "+
			"run `ALTER SEQUENCE %[1]s.log_seq INCREMENT 1 CACHE 1 NO CYCLE`, restart what enqueues, "+
			"then rewind the listeners to the time before (`outboxgen listener rewind`)", s.quoted, ErrSequence)
	case !row.Drawn:
		return false, 0, fmt.Errorf("table %[1]s.log has not the defaults of its migration: %[2]w: run `ALTER TABLE %[1]s.log "+
			"ALTER COLUMN xid SET DEFAULT pg_current_xact_id(), ALTER COLUMN seq SET DEFAULT "+
			"CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('%[1]s.log_seq') END`, "+
			"then rewind the listeners to the time before (`outboxgen listener rewind`)", s.quoted, ErrSequence)
	case row.Last >= 0 && row.Last < row.Reached:
		return true, row.Reached, fmt.Errorf("sequence %s.log_seq is at %d, and the log or a listener at %d already: %w: "+
			"stop the listeners, then run `outboxgen listener rebase --yes`", s.quoted, row.Last, row.Reached, ErrSequence)
	}
	return false, row.Reached, nil
}
