// Package methodtx is the transaction that a handler or a consumer's method gets while somebody else begins and ends
// it. The method cannot commit or roll back, and what it leaves behind is found before the next statement is sent.
package methodtx

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Guarded are the options of a READ COMMITTED transaction that only its owner can commit. Tx refuses Commit, but a
// method can still send COMMIT as SQL. That fails as soon as the inbox has recorded an event in the transaction: the
// trigger processed_events_owned raises unless the setting outboxgen.tx is 'commit', which CommitQuery sets.
// CommitQuery itself fails in a transaction that is not the one that began, because that one lacks the setting.
var Guarded = pgx.TxOptions{
	BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL outboxgen.tx = 'open'",
	CommitQuery: `SELECT set_config('outboxgen.tx', CASE WHEN state = 'open' THEN 'commit' ELSE (state || '` + otherTx +
		`')::int::text END, true)
FROM current_setting('outboxgen.tx', true) AS state; COMMIT`,
}

// otherTx is in the error of Guarded.CommitQuery: PostgreSQL has no expression that raises an error of choice.
const otherTx = "this transaction is not the one that began"

// IsOther reports whether err is that of a Commit with Guarded in a transaction that is not the one that began.
func IsOther(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "22P02" &&
		pg.Message == `invalid input syntax for type integer: "`+otherTx+`"`
}

// Tx is a transaction without Commit and Rollback. It is a pgx.Tx, and is as safe for concurrent use as one: not at
// all.
type Tx struct {
	pgx.Tx
	owned error
	seen  *seen
}

// seen is what happened in a transaction and its savepoints.
type seen struct {
	mu    sync.Mutex
	last  error // the latest error of PostgreSQL that is not about an earlier one
	ended error // a statement that would have ended the transaction
}

// New returns tx for a method. Its Commit and Rollback do nothing and return an error that wraps owned, and so does
// each statement that would end the transaction, and every statement once it has ended.
func New(tx pgx.Tx, owned error) *Tx { return &Tx{tx, owned, &seen{}} }

// Check returns the error of an attempt of who, whose method has returned err. That is err, or what the method has left
// behind: a transaction that has failed or ended, or an open result. A method that sent COMMIT or ROLLBACK as SQL has
// failed too. The connection may be closed: see pgx.Conn.IsClosed.
func (t *Tx) Check(who string, err error) error {
	conn := t.Conn()
	if conn == nil || conn.IsClosed() {
		return err
	}
	last, ended := t.seen.get()
	switch {
	case conn.PgConn().IsBusy():
		if err == nil {
			err = fmt.Errorf("%s returned nil, but left rows or a batch of its transaction open: close them", who)
		}
	case conn.PgConn().TxStatus() == 'I':
		err = fmt.Errorf("%s ended its transaction: %w", who, withCause(t.owned, err))
	case err == nil && ended != nil:
		err = fmt.Errorf("%s %w", who, ended)
	case err == nil && conn.PgConn().TxStatus() == 'E':
		if last == nil {
			last = errors.New("current transaction is aborted")
		}
		err = fmt.Errorf("%s returned nil, but left its transaction failed: %w", who, last)
	case last != nil && isAborted(err):
		err = fmt.Errorf("%s ignored an error of its transaction: %w: %w", who, last, err)
	}
	return err
}

// isAborted reports whether err says that an earlier statement of the transaction has failed.
func isAborted(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "25P02"
}

func withCause(err, cause error) error {
	switch {
	case cause == nil:
		return err
	case errors.Is(cause, err):
		return cause
	}
	return fmt.Errorf("%w (%w)", err, cause)
}

func (s *seen) get() (last, ended error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.ended
}

// note remembers err if PostgreSQL has answered it.
func (s *seen) note(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code != "25P02" {
		s.mu.Lock()
		s.last = err
		s.mu.Unlock()
	}
	return err
}

// refuses returns an error if a statement would end the transaction, or if it has ended and the statement would run
// alone.
func (t *Tx) refuses(sql string) error {
	if word := ending(sql); word != "" {
		err := fmt.Errorf("sent %s: %w", word, t.owned)
		t.seen.mu.Lock()
		t.seen.ended = err
		t.seen.mu.Unlock()
		return err
	}
	conn := t.Conn()
	if conn == nil || conn.IsClosed() || conn.PgConn().IsBusy() || conn.PgConn().TxStatus() != 'I' {
		return nil
	}
	return fmt.Errorf("the transaction has ended: %w", t.owned)
}

// ending returns what ends a transaction if a statement begins with that. A statement that hides it, in a comment or
// behind a semicolon, is found when it has run.
func ending(sql string) string {
	first, rest := word(sql)
	second, rest := word(rest)
	switch first {
	case "COMMIT", "END", "ABORT":
		return first
	case "ROLLBACK":
		if second == "WORK" || second == "TRANSACTION" {
			second, _ = word(rest)
		}
		if second != "TO" {
			return first
		}
	case "PREPARE":
		if second == "TRANSACTION" {
			return "PREPARE TRANSACTION"
		}
	}
	return ""
}

// word returns the first word of a statement in upper case, and what follows it.
func word(sql string) (word, rest string) {
	sql = strings.TrimLeft(sql, " \t\r\n;")
	n := 0
	for n < len(sql) && n < len("TRANSACTION") && (sql[n]|0x20 >= 'a' && sql[n]|0x20 <= 'z' || sql[n] == '_') {
		n++
	}
	return strings.ToUpper(sql[:n]), sql[n:]
}

// Commit does nothing and returns an error.
func (t *Tx) Commit(context.Context) error { return t.owned }

// Rollback does nothing and returns an error.
func (t *Tx) Rollback(context.Context) error { return t.owned }

// Begin makes a savepoint, which the method ends itself.
func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.refuses(""); err != nil {
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
	if err := t.refuses(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := t.Tx.Exec(ctx, sql, args...)
	return tag, t.seen.note(err)
}

// Query implements pgx.Tx.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.refuses(sql); err != nil {
		return failed{err}, err
	}
	return t.seen.rows(t.Tx.Query(ctx, sql, args...))
}

// QueryRow implements pgx.Tx.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.refuses(sql); err != nil {
		return failed{err}
	}
	return row{t.Tx.QueryRow(ctx, sql, args...), t.seen}
}

// CopyFrom implements pgx.Tx.
func (t *Tx) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource,
) (int64, error) {
	if err := t.refuses(""); err != nil {
		return 0, err
	}
	n, err := t.Tx.CopyFrom(ctx, table, columns, from)
	return n, t.seen.note(err)
}

// SendBatch implements pgx.Tx.
func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	err := t.refuses("")
	for i := 0; i < len(b.QueuedQueries) && err == nil; i++ {
		err = t.refuses(b.QueuedQueries[i].SQL)
	}
	if err != nil {
		return failedBatch{err}
	}
	return results{t.Tx.SendBatch(ctx, b), t.seen}
}

// savepoint is a savepoint of a Tx: its Commit and Rollback are the method's own.
type savepoint struct{ Tx }

// Commit releases the savepoint.
func (s *savepoint) Commit(ctx context.Context) error {
	if err := s.refuses(""); err != nil {
		return err
	}
	return s.seen.note(s.Tx.Tx.Commit(ctx))
}

// Rollback rolls back to the savepoint.
func (s *savepoint) Rollback(ctx context.Context) error {
	if err := s.refuses(""); err != nil {
		return err
	}
	return s.Tx.Tx.Rollback(ctx)
}
