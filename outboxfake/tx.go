package outboxfake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/seal"
)

// tx is a transaction or a savepoint of a DB. The mutex of the DB guards its fields.
//
// It embeds pgx.Tx, which is nil, because a later pgx may add methods to it. So do noRows and noResults.
type tx struct {
	pgx.Tx

	db     *DB
	once   bool // commits after the first call
	outer  *tx  // of a savepoint
	closed bool

	events []row         // of a transaction: with those of its savepoints
	before int           // of a savepoint: how many events its transaction had when it began
	ended  chan struct{} // of a transaction: closed at its end
}

func newTx(db *DB) *tx { return &tx{db: db, ended: make(chan struct{})} }

// Begin starts a transaction whose events are recorded when it commits. It can be passed to the code under test, or db
// to pgx.BeginFunc. Its statements, except for enqueues, return an error: Exec, Query and the others run no SQL.
func (db *DB) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	return newTx(db), nil
}

// BeginTx is Begin. It ignores the options.
func (db *DB) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return db.Begin(ctx) }

// Begin starts a savepoint.
func (t *tx) Begin(ctx context.Context) (pgx.Tx, error) {
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	if err := t.usable(ctx); err != nil {
		return nil, err
	}
	return &tx{db: t.db, outer: t, before: len(t.root().events)}, nil
}

func (t *tx) Commit(ctx context.Context) error { return t.finish(ctx, true) }

func (t *tx) Rollback(ctx context.Context) error { return t.finish(ctx, false) }

func (t *tx) finish(ctx context.Context, commit bool) error {
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	err := t.usable(ctx)
	if errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	t.end(commit && err == nil)
	return err
}

// end ends t.
func (t *tx) end(commit bool) {
	t.closed = true
	db, root := t.db, t.root()
	if !commit {
		for i := t.before; i < len(root.events); i++ {
			db.free(&root.events[i])
		}
		root.events = root.events[:t.before]
	}
	if t != root {
		return
	}
	for i := range root.events {
		if e := &root.events[i]; e.DedupeKey != "" {
			db.keys[e.key()] = owner{id: e.ID}
		}
	}
	db.events = append(db.events, root.events...)
	close(root.ended)
}

// free frees the dedupe key of e.
func (db *DB) free(e *row) {
	if e.DedupeKey != "" {
		delete(db.keys, e.key())
	}
}

// root returns the transaction that t is, or is a savepoint of.
func (t *tx) root() *tx {
	for t.outer != nil {
		t = t.outer
	}
	return t
}

// usable returns the error of a statement in a transaction that has ended, or with a context that has.
func (t *tx) usable(ctx context.Context) error {
	for at := t; at != nil; at = at.outer {
		if at.closed {
			return pgx.ErrTxClosed
		}
	}
	return ctx.Err()
}

// Keyring is called by the enqueues of package outbox that have no keyring.
func (t *tx) Keyring() seal.Keyring { return seal.ForTests() }

// RecordEvents is called by the enqueues of package outbox.
func (t *tx) RecordEvents(
	ctx context.Context, schema *schemadb.Schema, ms []outbox.Message, receipts []outbox.Receipt, order []int,
) error {
	db := t.db
	db.mu.Lock()
	defer db.mu.Unlock()
	events := make([]row, len(ms))
	for i := range ms {
		events[i] = newRow(schema.Name(), &ms[i], receipts[i].ID)
		events[i].keyring = seal.KeyringFromContext(ctx)
	}
	for n, i := range order {
		var err error
		if receipts[i], err = t.take(ctx, &events[i]); err != nil {
			for _, done := range order[:n] {
				if !receipts[done].Duplicate {
					db.free(&events[done])
				}
			}
			return err
		}
	}
	root := t.root()
	for i := range events {
		if !receipts[i].Duplicate {
			root.events = append(root.events, events[i])
		}
	}
	if t.once {
		t.end(true)
	}
	return nil
}

// take takes the dedupe key of e, if it has one. While another transaction that is still open has it, take waits
// without the mutex.
func (t *tx) take(ctx context.Context, e *row) (outbox.Receipt, error) {
	db, root := t.db, t.root()
	for {
		if err := t.usable(ctx); err != nil {
			return outbox.Receipt{}, err
		}
		if e.DedupeKey == "" {
			return outbox.Receipt{ID: e.ID}, nil
		}
		switch held, taken := db.keys[e.key()]; {
		case !taken:
			if db.keys == nil {
				db.keys = make(map[uniqueKey]owner)
			}
			db.keys[e.key()] = owner{id: e.ID, tx: root}
			return outbox.Receipt{ID: e.ID}, nil
		case held.tx == nil || held.tx == root:
			return outbox.Receipt{ID: held.id, Duplicate: true}, nil
		default:
			db.mu.Unlock()
			select {
			case <-held.tx.ended:
			case <-ctx.Done():
			}
			db.mu.Lock()
		}
	}
}

// newRow returns the row of m, as its handler gets it on the first attempt.
func newRow(schema string, m *outbox.Message, id uuid.UUID) row {
	e := row{
		Event: outbox.Event{
			ID: id, Namespace: m.Namespace, Topic: m.Topic, Version: m.Version, TenantID: m.TenantID, DedupeKey: m.DedupeKey,
			PartitionKey: m.PartitionKey, Entity: m.Entity, Headers: maps.Clone(m.Headers), Attempt: 1,
			MaxAttempts: m.MaxAttempts, CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
		},
		schema: cmp.Or(schema, "outbox"), log: m.Log, notBefore: m.NotBefore, payload: m.Payload,
	}
	if len(e.Headers) == 0 {
		e.Headers = nil
	}
	return e
}

// errNoSQL is the error of a statement that only PostgreSQL can run.
var errNoSQL = errors.New(
	"the transaction of a fake runs no SQL: test this code with a database, for example outboxtest.Postgres")

func (t *tx) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errNoSQL
}

func (t *tx) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return noRows{}, errNoSQL
}

func (t *tx) QueryRow(context.Context, string, ...any) pgx.Row { return noRows{} }

func (t *tx) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults { return noResults{} }

func (t *tx) CopyFrom(context.Context, pgx.Identifier, []string, pgx.CopyFromSource) (int64, error) {
	return 0, errNoSQL
}

func (t *tx) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, errNoSQL
}

func (t *tx) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

func (t *tx) Conn() *pgx.Conn { return nil }

// noRows are the rows of a statement that was not run.
type noRows struct{ pgx.Rows }

func (noRows) Close()                                       {}
func (noRows) Err() error                                   { return errNoSQL }
func (noRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (noRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (noRows) Next() bool                                   { return false }
func (noRows) Scan(...any) error                            { return errNoSQL }
func (noRows) Values() ([]any, error)                       { return nil, errNoSQL }
func (noRows) RawValues() [][]byte                          { return nil }
func (noRows) Conn() *pgx.Conn                              { return nil }

// noResults are the results of a batch that was not sent.
type noResults struct{ pgx.BatchResults }

func (noResults) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, errNoSQL }
func (noResults) Query() (pgx.Rows, error)         { return noRows{}, errNoSQL }
func (noResults) QueryRow() pgx.Row                { return noRows{} }
func (noResults) Close() error                     { return errNoSQL }
