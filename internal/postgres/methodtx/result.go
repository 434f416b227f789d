package methodtx

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rows are rows whose error is noted.
type rows struct {
	pgx.Rows
	seen *seen
}

func (s *seen) rows(r pgx.Rows, err error) (pgx.Rows, error) { return rows{r, s}, s.note(err) }

// Next implements pgx.Rows.
func (r rows) Next() bool {
	more := r.Rows.Next()
	if !more {
		_ = r.seen.note(r.Rows.Err())
	}
	return more
}

// Close implements pgx.Rows.
func (r rows) Close() {
	r.Rows.Close()
	_ = r.seen.note(r.Rows.Err())
}

// row is a row whose error is noted.
type row struct {
	pgx.Row
	seen *seen
}

// Scan implements pgx.Row.
func (r row) Scan(into ...any) error { return r.seen.note(r.Row.Scan(into...)) }

// results are those of a batch, whose errors are noted.
type results struct {
	pgx.BatchResults
	seen *seen
}

// Exec implements pgx.BatchResults.
func (r results) Exec() (pgconn.CommandTag, error) {
	tag, err := r.BatchResults.Exec()
	return tag, r.seen.note(err)
}

// Query implements pgx.BatchResults.
func (r results) Query() (pgx.Rows, error) { return r.seen.rows(r.BatchResults.Query()) }

// QueryRow implements pgx.BatchResults.
func (r results) QueryRow() pgx.Row { return row{r.BatchResults.QueryRow(), r.seen} }

// Close implements pgx.BatchResults.
func (r results) Close() error { return r.seen.note(r.BatchResults.Close()) }

// failed is a result that has an error only.
type failed struct{ err error }

func (f failed) Close()                                       {}
func (f failed) Err() error                                   { return f.err }
func (f failed) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (f failed) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (f failed) Next() bool                                   { return false }
func (f failed) Scan(...any) error                            { return f.err }
func (f failed) Values() ([]any, error)                       { return nil, f.err }
func (f failed) RawValues() [][]byte                          { return nil }
func (f failed) Conn() *pgx.Conn                              { return nil }
func (f failed) TypeMap() *pgtype.Map                         { return nil }

// failedBatch is a batch that was not sent.
type failedBatch struct{ err error }

func (f failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, f.err }
func (f failedBatch) Query() (pgx.Rows, error)         { return failed(f), f.err }
func (f failedBatch) QueryRow() pgx.Row                { return failed(f) }
func (f failedBatch) Close() error                     { return f.err }
func (f failedBatch) Tx() pgx.Tx                       { return nil }
