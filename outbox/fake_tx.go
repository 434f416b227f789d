package outbox

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
)

// recorder is a transaction that records events in place of PostgreSQL. It is an interface so that programs without a Fake
// do not link one.
type recorder interface {
	// record records ms, which were checked and have the ids in receipts. It takes their dedupe keys in the order of order,
	// which are indexes of ms, and returns receipts with the duplicates among them marked.
	record(ctx context.Context, db *schemadb.Schema, ms []Message, receipts []Receipt, order []int) ([]Receipt, error)
}

// fakeTx is a transaction or a savepoint of a Fake. The mutex of the Fake guards its fields.
//
// It embeds pgx.Tx, which is nil, because a later pgx may add methods to it. So do fakeRows and fakeBatch.
type fakeTx struct {
	pgx.Tx

	fake   *Fake
	once   bool    // commits after the first call
	outer  *fakeTx // of a savepoint
	closed bool

	events []fakeEvent   // of a transaction: with those of its savepoints
	before int           // of a savepoint: how many events its transaction had when it began
	ended  chan struct{} // of a transaction: closed at its end
}

func newFakeTx(f *Fake) *fakeTx { return &fakeTx{fake: f, ended: make(chan struct{})} }

// Begin starts a transaction whose events are recorded when it commits. It can be passed to the code under test, or f to
// pgx.BeginFunc. Its statements, except for enqueues, return an error: Exec, Query and the others run no SQL.
func (f *Fake) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	return newFakeTx(f), nil
}

// BeginTx is Begin. It ignores the options.
func (f *Fake) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return f.Begin(ctx) }

// Begin starts a savepoint.
func (tx *fakeTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx.fake.mu.Lock()
	defer tx.fake.mu.Unlock()
	if err := tx.usable(ctx); err != nil {
		return nil, err
	}
	return &fakeTx{fake: tx.fake, outer: tx, before: len(tx.root().events)}, nil
}

func (tx *fakeTx) Commit(ctx context.Context) error { return tx.finish(ctx, true) }

func (tx *fakeTx) Rollback(ctx context.Context) error { return tx.finish(ctx, false) }

func (tx *fakeTx) finish(ctx context.Context, commit bool) error {
	tx.fake.mu.Lock()
	defer tx.fake.mu.Unlock()
	err := tx.usable(ctx)
	if errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	tx.end(commit && err == nil)
	return err
}

// end ends tx.
func (tx *fakeTx) end(commit bool) {
	tx.closed = true
	f, root := tx.fake, tx.root()
	if !commit {
		for i := tx.before; i < len(root.events); i++ {
			f.free(&root.events[i])
		}
		root.events = root.events[:tx.before]
	}
	if tx != root {
		return
	}
	for i := range root.events {
		if e := &root.events[i]; e.DedupeKey != "" {
			f.keys[e.key()] = fakeOwner{id: e.ID}
		}
	}
	f.events = append(f.events, root.events...)
	close(root.ended)
}

// free frees the dedupe key of e.
func (f *Fake) free(e *fakeEvent) {
	if e.DedupeKey != "" {
		delete(f.keys, e.key())
	}
}

// root returns the transaction that tx is, or is a savepoint of.
func (tx *fakeTx) root() *fakeTx {
	for tx.outer != nil {
		tx = tx.outer
	}
	return tx
}

// usable returns the error of a statement in a transaction that has ended, or with a context that has.
func (tx *fakeTx) usable(ctx context.Context) error {
	for at := tx; at != nil; at = at.outer {
		if at.closed {
			return pgx.ErrTxClosed
		}
	}
	return ctx.Err()
}

func (tx *fakeTx) record(ctx context.Context, db *schemadb.Schema, ms []Message, receipts []Receipt, order []int) ([]Receipt, error) {
	f := tx.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	events := make([]fakeEvent, len(ms))
	for i := range ms {
		events[i] = newFakeEvent(db.Name(), &ms[i], receipts[i].ID)
	}
	for n, i := range order {
		var err error
		if receipts[i], err = tx.take(ctx, &events[i]); err != nil {
			for _, done := range order[:n] {
				if !receipts[done].Duplicate {
					f.free(&events[done])
				}
			}
			return nil, db.Wrap(ms[0].what(), err)
		}
	}
	root := tx.root()
	for i := range events {
		if !receipts[i].Duplicate {
			root.events = append(root.events, events[i])
		}
	}
	if tx.once {
		tx.end(true)
	}
	return receipts, nil
}

// take takes the dedupe key of e, if it has one. While another transaction that is still open has it, take waits without
// the mutex.
func (tx *fakeTx) take(ctx context.Context, e *fakeEvent) (Receipt, error) {
	f, root := tx.fake, tx.root()
	for {
		if err := tx.usable(ctx); err != nil {
			return Receipt{}, err
		}
		if e.DedupeKey == "" {
			return Receipt{ID: e.ID}, nil
		}
		switch owner, taken := f.keys[e.key()]; {
		case !taken:
			if f.keys == nil {
				f.keys = make(map[fakeKey]fakeOwner)
			}
			f.keys[e.key()] = fakeOwner{id: e.ID, tx: root}
			return Receipt{ID: e.ID}, nil
		case owner.tx == nil || owner.tx == root:
			return Receipt{ID: owner.id, Duplicate: true}, nil
		default:
			f.mu.Unlock()
			select {
			case <-owner.tx.ended:
			case <-ctx.Done():
			}
			f.mu.Lock()
		}
	}
}

// newFakeEvent returns the row of m, as its handler gets it on the first attempt.
func newFakeEvent(schema string, m *Message, id uuid.UUID) fakeEvent {
	e := fakeEvent{
		Event: Event{
			ID: id, Namespace: m.Namespace, Topic: m.Topic, Version: m.Version, TenantID: m.TenantID, DedupeKey: m.DedupeKey,
			PartitionKey: m.PartitionKey, Entity: m.Entity, Headers: maps.Clone(m.Headers), Attempt: 1, MaxAttempts: m.MaxAttempts,
			CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
		},
		schema: cmp.Or(schema, "outbox"), log: m.Log, notBefore: m.NotBefore, payload: m.Payload,
	}
	if len(e.Headers) == 0 {
		e.Headers = nil
	}
	return e
}

// errFakeSQL is the error of a statement that only PostgreSQL can run.
var errFakeSQL = errors.New("the transaction of a Fake runs no SQL: test this code with a database, for example outboxtest.Postgres")

func (tx *fakeTx) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errFakeSQL
}

func (tx *fakeTx) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return fakeRows{}, errFakeSQL
}

func (tx *fakeTx) QueryRow(context.Context, string, ...any) pgx.Row { return fakeRows{} }

func (tx *fakeTx) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults { return fakeBatch{} }

func (tx *fakeTx) CopyFrom(context.Context, pgx.Identifier, []string, pgx.CopyFromSource) (int64, error) {
	return 0, errFakeSQL
}

func (tx *fakeTx) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, errFakeSQL
}

func (tx *fakeTx) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

func (tx *fakeTx) Conn() *pgx.Conn { return nil }

// fakeRows are the rows of a statement that was not run.
type fakeRows struct{ pgx.Rows }

func (fakeRows) Close()                                       {}
func (fakeRows) Err() error                                   { return errFakeSQL }
func (fakeRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (fakeRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (fakeRows) Next() bool                                   { return false }
func (fakeRows) Scan(...any) error                            { return errFakeSQL }
func (fakeRows) Values() ([]any, error)                       { return nil, errFakeSQL }
func (fakeRows) RawValues() [][]byte                          { return nil }
func (fakeRows) Conn() *pgx.Conn                              { return nil }

// fakeBatch are the results of a batch that was not sent.
type fakeBatch struct{ pgx.BatchResults }

func (fakeBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, errFakeSQL }
func (fakeBatch) Query() (pgx.Rows, error)         { return fakeRows{}, errFakeSQL }
func (fakeBatch) QueryRow() pgx.Row                { return fakeRows{} }
func (fakeBatch) Close() error                     { return errFakeSQL }
