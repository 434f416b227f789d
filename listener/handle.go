package listener

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/postgres/methodtx"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// begin begins the transaction of the handlers, in which the cursor moves too.
func (s *shard) begin() core.Event {
	s.txBegan = time.Now()
	var err error
	if s.tx, err = s.beginTx(); err != nil {
		return s.failed(err)
	}
	return core.Begun{}
}

func (s *shard) beginTx() (pgx.Tx, error) {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	tx, err := s.l.pool.BeginTx(ctx, schemadb.ReadCommitted)
	if err != nil {
		return nil, err
	}
	// A process that is stopped in the middle of a transaction must not keep the rows locked that its handlers have
	// locked.
	const guard = "SELECT set_config('idle_in_transaction_session_timeout', $1, true)"
	if _, err := tx.Exec(ctx, guard, fmt.Sprint(s.l.cfg.LeaseDuration.Milliseconds())); err != nil {
		return nil, errtext.Join(err, tx.Rollback(ctx))
	}
	return tx, nil
}

// commit ends a lease in the transaction of its handlers, and commits that if this process still had the lease.
func (s *shard) commit(a *core.End) core.Event {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	moved := false
	b := &pgx.Batch{}
	s.l.db.GuardBetween(b, func() { // for these statements, not for those of handlers
		s.queueEnd(b, a, errclass.EncodingOf(s.tx.Conn()), &moved)
	})
	err := s.tx.SendBatch(ctx, b).Close()
	if err == nil && moved {
		err = s.tx.Commit(ctx)
	}
	if err != nil {
		var pg *pgconn.PgError
		alive := errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR"
		return core.CommitFailed{Err: err, Alive: alive, Result: brokenTx(err)}
	}
	s.l.rep.Statement("the transaction of the handlers", s.txBegan, nil)
	return core.Committed{Ours: moved}
}

// rollback rolls back the transaction of the handlers.
func (s *shard) rollback(tx pgx.Tx) {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// brokenTx is the result of an event whose handler has made its transaction unusable, by err.
func brokenTx(err error) errclass.Result {
	return errclass.Of(fmt.Errorf("transaction of the handler: %w", err))
}

// inSavepoint runs call in a savepoint, and rolls back to it if call returns an error. Without a transaction it only runs
// call.
func (b *batch) inSavepoint(work context.Context, call func(pgx.Tx) error) (err error) {
	if b.tx == nil {
		return call(nil)
	}
	ctx := context.WithoutCancel(work)
	if err := b.s.l.inTx(ctx, b.tx, "SAVEPOINT outboxgen_event"); err != nil {
		b.failTx(err)
		return err
	}
	kept := false
	defer func() {
		if kept {
			return
		}
		undo := b.s.l.inTx(ctx, b.tx, "ROLLBACK TO SAVEPOINT outboxgen_event; RELEASE SAVEPOINT outboxgen_event")
		if undo != nil {
			b.failTx(errtext.Join(err, undo))
		}
	}()
	own := methodtx.New(b.tx, errNotYours)
	if err := own.Check("handler", call(own)); err != nil {
		return err
	}
	if err := b.s.l.inTx(ctx, b.tx, "RELEASE SAVEPOINT outboxgen_event"); err != nil {
		return fmt.Errorf("handler returned nil, but left its transaction failed: %w", err)
	}
	kept = true
	return nil
}

// inTx runs one of the listener's own statements in tx.
func (l *Listener) inTx(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	ctx, cancel := l.limited(ctx)
	defer cancel()
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

var errNotYours = errors.New(
	"the listener ends this transaction, after its handlers: return nil to keep what was written, or an error")
