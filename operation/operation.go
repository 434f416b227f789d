// Package operation runs the operations of the YAML: transactions that commit only with one of their outcomes, and with
// its events.
//
// A generated function such as FinalizeTurn is the way in. It gives its caller a transaction whose methods are the
// outcomes, so that a program without an outcome does not compile.
package operation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/postgres/ownedtx"
	"github.com/outboxgen/outboxgen/outbox"
)

// Beginner begins the transactions of operations. A *pgxpool.Pool and a *pgx.Conn are Beginners. So is a pgx.Tx: then
// the operation is a savepoint of that transaction, and takes effect if the transaction commits too.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

var (
	// ErrNoOutcome: the function of an operation returned no error and no valid outcome, so the operation was rolled
	// back. The outcome was the zero value or that of another transaction, there were two of them, or one was made inside
	// a savepoint.
	ErrNoOutcome = errors.New("no valid outcome")
	// ErrTxOwned: Commit or Rollback was called on the transaction of an operation. Both do nothing.
	ErrTxOwned = errors.New(
		"the operation owns the transaction: return an outcome to commit it, or an error to roll it back")
)

// Operation is one run of an operation of the YAML. Generated code uses it to make outcomes. Its methods may be called
// until the function that Run has passed it to returns, and not concurrently with the use of its transaction.
type Operation struct {
	name string
	tx   *ownTx

	mu         sync.Mutex
	outcome    string // the first outcome that was asked for, "" before that
	spoiled    error  // why the operation cannot commit; nil while it can
	savepoints int    // that are open
	over       bool
}

// Outcome says that the events of an outcome were enqueued in the transaction of an operation. Only the methods
// of Operation make one. The zero value is not an outcome, and an operation that returns it is rolled back.
type Outcome struct {
	of       *Operation
	receipts []outbox.Receipt
}

// Receipts returns the receipt of each event of the outcome, in the order of the YAML. The receipt of an event whose
// dedupe key was taken has Duplicate set.
func (o Outcome) Receipts() []outbox.Receipt { return append([]outbox.Receipt(nil), o.receipts...) }

// Emission is an event that an outcome is about to enqueue.
type Emission struct {
	Topic   *outbox.UntypedTopic
	Payload any // a pointer to a value of the topic's type
}

// Run begins a transaction on db, calls do and ends the transaction. It commits if do returns the outcome of
// this operation. In any other case it rolls back:
//
//   - do returns an error. Run returns that error, joined with that of the rollback if there is one. It does so
//     also if do returns an outcome along with the error.
//   - do returns no valid outcome. The error wraps ErrNoOutcome.
//   - do panics, or ends its goroutine with runtime.Goexit. Both continue after the rollback.
//   - ctx has ended when do returns. The error is that of ctx.
//
// Run does not retry. After a serialization failure or a deadlock the caller runs the operation again. The isolation
// level is that of the transactions that db begins. After an error of the commit itself, as after any commit, the
// transaction may have committed.
func Run(ctx context.Context, db Beginner, name string, do func(context.Context, *Operation) (Outcome, error)) error {
	switch {
	case ctx == nil:
		return fmt.Errorf("operation %s: no context given (nil)", name)
	case isnil.Is(db):
		return fmt.Errorf("operation %s: no database given (nil)", name)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("operation %s: begin transaction: %w", name, err)
	}
	o := &Operation{name: name}
	o.tx = &ownTx{ownedtx.Around{Tx: tx}, o}
	returned := false
	defer func() {
		if !returned {
			o.end()
			_ = rollback(ctx, tx) // the panic continues, and says more
		}
	}()
	outcome, err := do(ctx, o)
	returned = true
	if cause := o.end(); err == nil {
		err = o.refusal(outcome, cause)
	}
	if err == nil {
		err = o.named("commit", ctx.Err())
	}
	if err == nil {
		return o.named("commit", tx.Commit(ctx))
	}
	return errtext.Join(err, o.named("roll back", rollback(ctx, tx)))
}

// named adds what the operation did to err.
func (o *Operation) named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("operation %s: %s: %w", o.name, what, err)
}

// rollbackLimit is how long a rollback may take. It runs also if the caller's context has ended, because otherwise pgx
// would have to close the connection.
const rollbackLimit = 10 * time.Second

// rollback rolls tx back. On a closed connection PostgreSQL has done so itself.
func rollback(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackLimit)
	defer cancel()
	closed := false
	if conn := tx.Conn(); conn != nil {
		closed = conn.IsClosed()
	}
	err := tx.Rollback(ctx)
	if closed || errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	return err
}

// end ends the use of o, and returns why it cannot commit, or nil.
func (o *Operation) end() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	return o.spoiled
}

// refusal returns why an operation that returned outcome is rolled back, or nil. Spoiled is what end returned.
func (o *Operation) refusal(outcome Outcome, spoiled error) error {
	switch {
	case spoiled != nil:
		return spoiled
	case outcome.of == nil:
		return fmt.Errorf("operation %s: %w: it returned a zero outcome and no error", o.name, ErrNoOutcome)
	case outcome.of != o:
		return fmt.Errorf("operation %s: %w: it returned the outcome of another transaction", o.name, ErrNoOutcome)
	}
	return nil
}

// Tx returns the transaction of o, for business rows.
func (o *Operation) Tx() Tx { return o.tx }

// Emit enqueues the events of an outcome with opts and returns it. An error rolls the operation back, even if the
// caller ignores it. An operation has one outcome: a second call returns an error.
func (o *Operation) Emit(
	ctx context.Context, outcome string, opts []outbox.EnqueueOption, events ...Emission,
) (Outcome, error) {
	if err := o.begin(outcome); err != nil {
		return Outcome{}, err
	}
	done := Outcome{of: o, receipts: make([]outbox.Receipt, 0, len(events))}
	for _, e := range events {
		r, err := e.Topic.Enqueue(ctx, o.tx.Tx, e.Payload, opts...)
		if err != nil {
			return Outcome{}, o.spoil(fmt.Errorf("operation %s: outcome %s: %w", o.name, outcome, err))
		}
		done.receipts = append(done.receipts, r)
	}
	return done, nil
}

// NoEvents returns an outcome that has no events. If it is not the only outcome of the operation, it is the zero value,
// and the operation is rolled back.
func (o *Operation) NoEvents(outcome string) Outcome {
	if o.begin(outcome) != nil {
		return Outcome{}
	}
	return Outcome{of: o}
}

// begin takes the one outcome that o may have.
func (o *Operation) begin(outcome string) error {
	if o == nil {
		return fmt.Errorf("outcome %s: %w: the transaction was not begun by its operation", outcome, ErrNoOutcome)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	why := ""
	switch {
	case o.over:
		why = "the operation has ended"
	case o.outcome != "":
		why = "the operation already has outcome " + o.outcome
	case o.savepoints > 0:
		why = "a savepoint is open, which could roll back the events: end it first"
	}
	if o.outcome == "" {
		o.outcome = outcome
	}
	if why == "" {
		return nil
	}
	err := fmt.Errorf("operation %s: outcome %s: %w: %s", o.name, outcome, ErrNoOutcome, why)
	if o.spoiled == nil {
		o.spoiled = err
	}
	return err
}

// spoil keeps o from committing because of err, which it returns.
func (o *Operation) spoil(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.spoiled == nil {
		o.spoiled = err
	}
	return err
}

// Tx is the transaction of an operation, for business rows. It is a pgx.Tx whose Commit and Rollback do nothing and
// return ErrTxOwned. The events of an outcome cannot be enqueued while a savepoint that its Begin has made is open,
// since they would be lost if the savepoint were rolled back. Only an Operation makes a Tx.
type Tx interface{ ownedtx.Tx }

// ownTx is the Tx of an operation.
type ownTx struct {
	ownedtx.Around
	of *Operation
}

// Commit returns ErrTxOwned.
func (tx *ownTx) Commit(context.Context) error { return ErrTxOwned }

// Rollback returns ErrTxOwned.
func (tx *ownTx) Rollback(context.Context) error { return ErrTxOwned }

// Begin makes a savepoint.
func (tx *ownTx) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := tx.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	tx.of.count(1)
	return &savepoint{Around: ownedtx.Around{Tx: inner}, of: tx.of}, nil
}

func (o *Operation) count(savepoints int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.savepoints += savepoints
}

// savepoint is a savepoint in the transaction of an operation. Its own savepoints end with it.
type savepoint struct {
	ownedtx.Around
	of    *Operation
	ended sync.Once
}

// Commit releases the savepoint.
func (s *savepoint) Commit(ctx context.Context) error {
	s.ended.Do(func() { s.of.count(-1) })
	return s.Tx.Commit(ctx)
}

// Rollback rolls back to the savepoint.
func (s *savepoint) Rollback(ctx context.Context) error {
	s.ended.Do(func() { s.of.count(-1) })
	return s.Tx.Rollback(ctx)
}
