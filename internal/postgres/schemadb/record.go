package schemadb

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// Queue puts the statement of call into b.
func (s *Schema) Queue(b *pgx.Batch, call func(*queries.Queries)) *pgx.QueuedQuery {
	text, args := s.Record(call)
	return b.Queue(text, args...)
}

// Record runs call against a database that only records the statement, and returns the statement. It is the way to put
// a query that sqlc has compiled into a batch, with its arguments in the right order.
func (s *Schema) Record(call func(*queries.Queries)) (query string, args []any) {
	r := &recorder{}
	call(queries.New(r))
	return s.Text(r.query), r.args
}

var errRecorded = errors.New("recorded, not run")

type recorder struct {
	query string
	args  []any
}

func (r *recorder) Exec(_ context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	r.query, r.args = query, args
	return pgconn.CommandTag{}, errRecorded
}

func (r *recorder) Query(_ context.Context, query string, args ...any) (pgx.Rows, error) {
	r.query, r.args = query, args
	return nil, errRecorded
}

func (r *recorder) QueryRow(_ context.Context, query string, args ...any) pgx.Row {
	r.query, r.args = query, args
	return recordedRow{}
}

type recordedRow struct{}

func (recordedRow) Scan(...any) error { return errRecorded }
