// Package sqltx lets code that does not use pgx enqueue events: it makes an outbox.Tx of a transaction of database/sql,
// and so of sqlx, GORM, bun and ent.
//
//	receipt, err := events.EnqueueTurnFinalized(ctx, sqltx.Wrap(tx), turn)
//
// The database is PostgreSQL, and its driver is pgx/stdlib, lib/pq or the pgdriver of bun. Dispatchers, listeners,
// operations and EnqueueInBatch need pgx itself.
package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"reflect"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/outbox"
)

// Tx is what Wrap takes: a *sql.Tx, or a type with its methods such as *sqlx.Tx, bun.Tx, *gorm.PreparedStmtTX, and the
// *Tx of an ent client with the feature sql/execquery. A *sql.DB and a *sql.Conn are not transactions and do not
// compile.
//
// QueryContext must send query and args as they are.
type Tx interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// Wrap returns tx as a transaction to enqueue with. Wrap runs no statement, and may be called again for each enqueue.
// An enqueue never ends the transaction: commit tx as before. If tx is nil, each enqueue returns an error.
//
// If tx is a struct that embeds a *sql.Tx, as *sqlx.Tx and bun.Tx are, statements go to that *sql.Tx and pass by the
// methods of the struct, because those of bun do not send the arguments of a statement.
//
// Errors of PostgreSQL are those of the driver, which errors.As finds. The outbox errors are found as with pgx, for
// example outbox.ErrSerialization. If ctx ends during a statement, the error wraps that of ctx, and the transaction
// cannot be used any more. The result must not be used concurrently, as tx must not.
func Wrap(tx Tx) outbox.Tx {
	if isnil.Is(tx) {
		return (*wrapped)(nil)
	}
	return &wrapped{tx: tx, sender: sender(tx)}
}

// querier is the part of Tx that sends statements.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// sender returns what sends the statements of tx.
func sender(tx Tx) querier {
	if plain, ok := tx.(*sql.Tx); ok {
		return plain
	}
	v := reflect.Indirect(reflect.ValueOf(tx))
	if v.Kind() != reflect.Struct {
		return tx
	}
	field, ok := v.Type().FieldByName("Tx")
	if !ok || !field.Anonymous || len(field.Index) != 1 || field.Type != reflect.TypeFor[*sql.Tx]() {
		return tx
	}
	if plain := v.FieldByIndex(field.Index).Interface().(*sql.Tx); plain != nil {
		return plain
	}
	return tx
}

// wrapped is a Tx as an outbox.Tx. It is nil if the Tx is.
type wrapped struct {
	tx     Tx
	sender querier
}

var errNoTx = errors.New("no transaction given (nil)")

// Query sends a statement of outbox. args and the destinations of Scan have the types that the statements of outbox
// use; any other is an error.
func (w *wrapped) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	r, err := w.query(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (w *wrapped) query(ctx context.Context, query string, args []any) (*rows, error) {
	if w == nil {
		return nil, errNoTx
	}
	values, err := encode(args)
	if err != nil {
		return nil, err
	}
	sent, err := w.sender.QueryContext(ctx, query, values...)
	if err != nil {
		return nil, w.explain(ctx, err)
	}
	if columns, err := sent.Columns(); err == nil && len(columns) == 0 {
		_ = sent.Close() // there is nothing in them
		return nil, w.explain(ctx, errNoColumns)
	}
	return &rows{ctx: ctx, sent: sent, of: w}, nil
}

// QueryRow is Query for one row.
func (w *wrapped) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	r, err := w.query(ctx, query, args)
	return schemadb.FirstRow{Rows: r, Err: err}
}

// Commit commits the transaction. It ignores ctx, as the Commit of database/sql has none.
func (w *wrapped) Commit(context.Context) error {
	if w == nil {
		return errNoTx
	}
	return w.tx.Commit()
}

// Rollback rolls the transaction back. It ignores ctx.
func (w *wrapped) Rollback(context.Context) error {
	if w == nil {
		return errNoTx
	}
	return w.tx.Rollback()
}
