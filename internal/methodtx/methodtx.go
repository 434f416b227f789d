// Package methodtx is the transaction that a handler or a consumer's method gets while somebody else begins and ends it. The
// method cannot commit or roll back, and what it leaves behind is found before the next statement is sent.
package methodtx

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Guarded are the options of a READ COMMITTED transaction that only its owner can commit. Tx refuses Commit, but a method can
// still send COMMIT as SQL. That fails as soon as the inbox has recorded an event in the transaction: the trigger
// processed_events_owned raises unless the setting outboxgen.tx is 'commit', which CommitQuery sets. CommitQuery itself fails
// in a transaction that is not the one that began, because that one lacks the setting.
var Guarded = pgx.TxOptions{
	BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL outboxgen.tx = 'open'",
	CommitQuery: `SELECT set_config('outboxgen.tx', CASE WHEN state = 'open' THEN 'commit' ELSE (state || '` + otherTx + `')::int::text END, true)
FROM current_setting('outboxgen.tx', true) AS state; COMMIT`,
}

// otherTx is in the error of Guarded.CommitQuery: PostgreSQL has no expression that raises an error of choice.
const otherTx = "this transaction is not the one that began"

// IsOther reports whether err is that of a Commit with Guarded in a transaction that is not the one that began.
func IsOther(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "22P02" && pg.Message == `invalid input syntax for type integer: "`+otherTx+`"`
}

// Tx is a transaction without Commit and Rollback. It is a pgx.Tx, and is as safe for concurrent use as one: not at all.
type Tx struct {
	pgx.Tx
	owned error
	seen  *seen
}

// seen is what a transaction and its savepoints have answered.
type seen struct {
	mu   sync.Mutex
	last error // the latest error of PostgreSQL that is not about an earlier one
}

// New returns tx for a method. Its Commit and Rollback do nothing and return owned, and so does every statement once the
// transaction has ended.
func New(tx pgx.Tx, owned error) *Tx { return &Tx{tx, owned, &seen{}} }

// Check returns the error of an attempt whose method has returned err. That is err, or what the method has left behind: a
// transaction that has failed or ended, or an open result. The connection may be closed: see pgx.Conn.IsClosed.
func (t *Tx) Check(err error) error {
	conn := t.Conn()
	if conn == nil || conn.IsClosed() {
		return err
	}
	switch {
	case conn.PgConn().IsBusy():
		if err == nil {
			err = errors.New("it returned nil, but left rows or a batch of its transaction open: close them")
		}
	case conn.PgConn().TxStatus() == 'I':
		err = fmt.Errorf("it ended its transaction: %w", withCause(t.owned, err))
	case err == nil && conn.PgConn().TxStatus() == 'E':
		cause := t.seen.error()
		if cause == nil {
			cause = errors.New("current transaction is aborted")
		}
		err = fmt.Errorf("it returned nil, but left its transaction failed: %w", cause)
	}
	return err
}

func withCause(err, cause error) error {
	if cause == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w (%w)", err, cause)
}

func (s *seen) error() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// note remembers err if PostgreSQL has answered it.
func (s *seen) note(err error) error {
	var pg *pgconn.PgError
	if err != nil && errors.As(err, &pg) && pg.Code != "25P02" { // which says that an earlier one was ignored
		s.mu.Lock()
		s.last = err
		s.mu.Unlock()
	}
	return err
}

// over returns an error if the transaction has ended, so that no statement runs outside it.
func (t *Tx) over() error {
	conn := t.Conn()
	if conn == nil || conn.IsClosed() || conn.PgConn().IsBusy() || conn.PgConn().TxStatus() != 'I' {
		return nil
	}
	return fmt.Errorf("the transaction has ended: %w", t.owned)
}

// Commit does nothing and returns an error.
func (t *Tx) Commit(context.Context) error { return t.owned }

// Rollback does nothing and returns an error.
func (t *Tx) Rollback(context.Context) error { return t.owned }

// Begin makes a savepoint, which the method ends itself.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.over(); err != nil {
		return nil, err
	}
	inner, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, t.seen.note(err)
	}
	return &savepoint{Tx{inner, t.owned, t.seen}}, nil
}

// Exec implements pgx.Tx.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.over(); err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := t.Tx.Exec(ctx, sql, args...)
	return tag, t.seen.note(err)
}

// Query implements pgx.Tx.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.over(); err != nil {
		return failed{err}, err
	}
	return t.seen.rows(t.Tx.Query(ctx, sql, args...))
}

// QueryRow implements pgx.Tx.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.over(); err != nil {
		return failed{err}
	}
	return row{t.Tx.QueryRow(ctx, sql, args...), t.seen}
}

// CopyFrom implements pgx.Tx.
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	if err := t.over(); err != nil {
		return 0, err
	}
	n, err := t.Tx.CopyFrom(ctx, table, columns, from)
	return n, t.seen.note(err)
}

// SendBatch implements pgx.Tx.
func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.over(); err != nil {
		return failedBatch{err}
	}
	return results{t.Tx.SendBatch(ctx, b), t.seen}
}

// savepoint is a savepoint of a Tx: its Commit and Rollback are the method's own.
type savepoint struct{ Tx }

// Commit releases the savepoint.
func (s *savepoint) Commit(ctx context.Context) error {
	if err := s.over(); err != nil {
		return err
	}
	return s.seen.note(s.Tx.Tx.Commit(ctx))
}

// Rollback rolls back to the savepoint.
func (s *savepoint) Rollback(ctx context.Context) error {
	if err := s.over(); err != nil {
		return err
	}
	return s.Tx.Tx.Rollback(ctx)
}
