package schemadb

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// Every transaction of the runtime begins here, at READ COMMITTED (except InSnapshot), whatever the default of the role
// or the database is. The statements rely on a new snapshot per statement, and on continuing with the newest version of
// a row that they waited for.
const (
	begin         = "BEGIN ISOLATION LEVEL READ COMMITTED"
	beginReadOnly = begin + " READ ONLY"
	commit        = "COMMIT"
)

// ReadCommitted are the options of a transaction in which other code runs too. That code gets none of the settings of
// SessionGuard.
var ReadCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// Beginner is a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Sender is a pool or a connection.
type Sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// InTx runs call in a READ COMMITTED transaction with the settings of SessionGuard, and commits unless call returns an
// error. The transaction has no xid before call.
func (s *Schema) InTx(ctx context.Context, db Beginner, call func(*queries.Queries) error) error {
	return pgx.BeginTxFunc(ctx, db, ReadCommitted, func(tx pgx.Tx) error {
		q := s.On(tx)
		if err := q.SessionGuard(ctx); err != nil {
			return err
		}
		return call(q)
	})
}

// InTxPlanned is like InTx, but without the settings of SessionGuard that restrict the planner to index scans.
func (s *Schema) InTxPlanned(ctx context.Context, db Beginner, call func(*queries.Queries) error) error {
	return pgx.BeginTxFunc(ctx, db, ReadCommitted, func(tx pgx.Tx) error {
		q := s.On(tx)
		if err := q.SessionPath(ctx); err != nil {
			return err
		}
		return call(q)
	})
}

// InSnapshot runs call in a read-only transaction with the settings of SessionGuard, whose statements all see the
// database at the moment of the first one.
func (s *Schema) InSnapshot(ctx context.Context, db Beginner, call func(*queries.Queries) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			q := s.On(tx)
			if err := q.SessionGuard(ctx); err != nil {
				return err
			}
			return call(q)
		})
}

// WithCursorLock runs call in a READ COMMITTED transaction that has the lock of the schema's cursors and no xid yet.
// what says in an error what was being done.
func (s *Schema) WithCursorLock(
	ctx context.Context, db Beginner, what string, call func(*queries.Queries) error,
) error {
	return s.Wrap(what, s.InTx(ctx, db, func(q *queries.Queries) error {
		if err := q.ListenerLock(ctx, s.CursorLock()); err != nil {
			return err
		}
		return call(q)
	}))
}

// Begin adds the start of a READ COMMITTED transaction with the settings of SessionGuard to b. Commit adds its end.
func (s *Schema) Begin(b *pgx.Batch) { s.begin(b, begin) }

// BeginReadOnly is like Begin, for a transaction that writes nothing.
func (s *Schema) BeginReadOnly(b *pgx.Batch) { s.begin(b, beginReadOnly) }

func (s *Schema) begin(b *pgx.Batch, text string) {
	b.Queue(text)
	s.Guard(b)
}

// Guard adds the settings of SessionGuard to b, for the rest of a transaction that has begun.
func (s *Schema) Guard(b *pgx.Batch) { b.Queue(s.Text(queries.SessionGuard)) }

// GuardBetween adds the settings of SessionGuard to b, the statements of call, and the path that the transaction had before
// them: what runs at its commit may be the code of others.
func (s *Schema) GuardBetween(b *pgx.Batch, call func()) {
	b.Queue(s.Text(queries.SessionPathKeep))
	s.Guard(b)
	call()
	b.Queue(s.Text(queries.SessionPathRestore))
}

// Commit adds the end of a transaction to b.
func (s *Schema) Commit(b *pgx.Batch) { b.Queue(commit) }

// Each returns the queries of s. Each query runs on db in its own transaction, like that of InTx, and in one round
// trip.
func (s *Schema) Each(db Sender) *queries.Queries {
	return queries.New(each{db: db, schema: s, guarded: true})
}

// EachPlanned is like Each, but without the settings of SessionGuard that restrict the planner to index scans. Use it
// for statements that read whole tables.
func (s *Schema) EachPlanned(db Sender) *queries.Queries { return queries.New(each{db: db, schema: s}) }

type each struct {
	db      Sender
	schema  *Schema
	guarded bool
}

// send sends query between a BEGIN and a COMMIT, and reads the answers up to that of query.
func (e each) send(ctx context.Context, query string, args []any) (pgx.BatchResults, error) {
	b := &pgx.Batch{}
	b.Queue(begin)
	if e.guarded {
		e.schema.Guard(b)
	} else {
		b.Queue(e.schema.Text(queries.SessionPath))
	}
	before := b.Len()
	b.Queue(e.schema.Text(query), args...)
	e.schema.Commit(b)
	results := e.db.SendBatch(ctx, b)
	for range before {
		if _, err := results.Exec(); err != nil {
			_ = results.Close() // the same error
			return nil, err
		}
	}
	return results, nil
}

func (e each) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	results, err := e.send(ctx, query, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := results.Exec()
	if end := results.Close(); err == nil {
		err = end
	}
	return tag, err
}

func (e each) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	results, err := e.send(ctx, query, args)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close() // the same error
		return nil, err
	}
	return &eachRows{Rows: rows, results: results}, nil
}

func (e each) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	rows, err := e.Query(ctx, query, args...)
	return FirstRow{Rows: rows, Err: err}
}

// eachRows are the rows of a query whose transaction ends when they are closed.
type eachRows struct {
	pgx.Rows
	results pgx.BatchResults
	over    bool
	err     error
}

func (r *eachRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close ends the transaction, even if not all rows were read.
func (r *eachRows) Close() {
	if r.over {
		return
	}
	r.over = true
	r.Rows.Close()
	r.err = r.Rows.Err()
	if end := r.results.Close(); r.err == nil {
		r.err = end
	}
}

// Err returns the error of the query or of the commit.
func (r *eachRows) Err() error {
	if r.over {
		return r.err
	}
	return r.Rows.Err()
}

// FirstRow is the first of rows, or their error.
type FirstRow struct {
	Rows pgx.Rows
	Err  error
}

// Scan implements pgx.Row.
func (r FirstRow) Scan(into ...any) error {
	if r.Err != nil {
		return r.Err
	}
	defer r.Rows.Close()
	if !r.Rows.Next() {
		if err := r.Rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.Rows.Scan(into...); err != nil {
		return err
	}
	r.Rows.Close()
	return r.Rows.Err()
}
