package listener

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/outbox"
)

// leaseOutcome is how the handling of a lease came out, and why if it failed.
type leaseOutcome struct {
	kind  leaseKind
	cause error
}

type leaseKind int

const (
	leaseHandled   leaseKind = iota // its events have their status, which is still to be written
	leaseCommitted                  // that was written, together with what the handlers wrote
	leaseLost                       // another process has it
	leaseUnread                     // the database failed before a handler was called
	leaseUndone                     // what handlers did was rolled back
	leaseBroken                     // likewise, but the database is well: an event broke its transaction, and is searched for
	leaseAbandoned                  // handlers still run although the time to stop is over
)

// handleLease handles the events of a lease and decides how it ends. It returns the end that is still to be written, nil if
// there is none: inTransaction has committed it, or nobody can write it.
func (s *shardLoop) handleLease(ctx context.Context, lease *shardLease) (*advance, error) {
	o := s.handleEvents(ctx, lease)
	switch o.kind {
	case leaseHandled:
		a := s.l.end(lease, s.shard, ctx.Err() != nil)
		s.giveUp(s.run.DBCtx, a)
		s.rememberRetries(a)
		return a, nil
	case leaseUnread:
		s.l.rep.Statement("take events", time.Now(), o.cause)
		s.repeat(lease)
		s.pause(ctx, false)
	case leaseUndone, leaseBroken:
		// If they were committed nevertheless, the next lease continues after them.
		s.l.log.Debug("events are rolled back and will be handled again", "shard", s.shard, "count", len(lease.events)+len(lease.parked), "error", o.cause)
		s.rolledBack(o.cause)
		s.repeat(lease)
		if ctx.Err() != nil { // the next holder need not wait, or handle events one by one
			lease.resetStarted()
			return s.l.end(lease, s.shard, true), nil
		}
		s.l.tellEnds(lease, false)
		if o.kind == leaseUndone {
			s.pause(ctx, false)
		}
	case leaseAbandoned:
		if s.l.transactional { // its transaction is still in use
			return nil, o.cause
		}
		// The results of the other handlers are kept. Nobody gets the shard until the lease runs out, because some handlers
		// still run.
		a := s.l.end(lease, s.shard, false)
		a.params.LetLeaseExpire = true
		moved, _, err := s.roundTrip(s.run.DBCtx, a, false)
		if err == nil {
			s.l.tellEnds(lease, moved)
		}
		if err == nil && !moved {
			err = outbox.ErrLeaseLost
		}
		return nil, errtext.Join(o.cause, err)
	case leaseCommitted, leaseLost:
	}
	return nil, nil
}

// rolledBack records that the transaction of a lease was rolled back because of cause.
func (s *shardLoop) rolledBack(cause error) {
	if errors.Is(cause, outbox.ErrLeaseLost) {
		s.l.rep.LeaseLost(keepingLease)
	} else {
		s.l.rep.Statement("the transaction of the handlers", time.Now(), cause)
	}
}

// keepingLease is in the log what fails when a lease is lost.
const keepingLease = "keep the lease of a shard"

// handleEvents calls the handlers of a lease.
func (s *shardLoop) handleEvents(ctx context.Context, lease *shardLease) leaseOutcome {
	if lease.parkedDue {
		if err := s.takeParked(s.run.DBCtx, lease); err != nil {
			return leaseOutcome{leaseUnread, err}
		}
	}
	if ours, err := s.charge(s.run.DBCtx, lease); err != nil {
		return leaseOutcome{leaseUnread, err}
	} else if !ours {
		return leaseOutcome{kind: leaseLost}
	}
	if s.l.hooks != nil {
		s.l.tellClaimed(lease, slices.Concat(lease.parked, lease.events))
	}
	if s.l.transactional {
		before := s.run.budget.remaining()
		o := s.inTransaction(ctx, lease)
		if o.kind == leaseUndone || o.kind == leaseBroken { // a bounded Drain must come to the event that is searched for
			s.run.budget.take(s.run.budget.remaining() - before)
		}
		return o
	}
	if err := s.handleBatches(ctx, lease); err != nil {
		return leaseOutcome{leaseAbandoned, err}
	}
	return leaseOutcome{kind: leaseHandled}
}

// handleBatches handles the first batch of the lease, and then the next batches of its window for as long as the lease
// may continue. The next lease may begin with a batch that this one has read.
func (s *shardLoop) handleBatches(ctx context.Context, lease *shardLease) error {
	lease.began = time.Now()
	for {
		p := s.prefetch(ctx, lease)
		b := s.newBatch(ctx, lease, nil)
		b.of = s.run
		started := time.Now()
		err := s.handleBatch(b)
		s.slow = time.Since(started) > s.l.leaseAge/2
		if err != nil || !s.usable(ctx, b, p) {
			p.drop()
			return err
		}
		for _, e := range lease.events {
			if e.status == statusParked && !e.parkedBefore {
				lease.parkNow(e.key)
			}
		}
		p.parkedNow = lease.parkedNow
		if s.full(lease) {
			s.carried = p
			return nil
		}
		s.continueWith(lease, p)
	}
}

// handleBatch runs b while its lease is renewed.
func (s *shardLoop) handleBatch(b *batch) error {
	work, cancel := context.WithCancelCause(s.run.WorkCtx)
	defer cancel(nil)
	stop := s.keepLease(s.run.DBCtx, b.lease, func() {
		b.loseLease()
		cancel(outbox.ErrLeaseLost)
	})
	defer stop()
	b.run(work, s.run.GiveUp)
	if names := b.names(); names != "" {
		return fmt.Errorf("stop listener: still running after %s: %s", s.l.cfg.ShutdownTimeout, names)
	}
	return nil
}

// inTransaction handles the events of lease in the transaction in which the cursor moves.
func (s *shardLoop) inTransaction(ctx context.Context, lease *shardLease) leaseOutcome {
	dbCtx, began := s.run.DBCtx, time.Now()
	tx, err := s.beginTx(dbCtx)
	if err != nil {
		return leaseOutcome{leaseUndone, err}
	}
	undo := func() {
		end, cancel := s.l.limited(dbCtx)
		defer cancel()
		_ = tx.Rollback(end)
	}
	b := s.newBatch(ctx, lease, tx)
	b.entries = s.txSearch.pick(b.entries)
	if err := s.handleBatch(b); err != nil {
		go func() { // the handler uses the transaction until it returns
			<-b.finished
			undo()
		}()
		return leaseOutcome{leaseAbandoned, err}
	}
	defer undo()
	if b.leaseLost { // takes precedence over what has happened since
		return leaseOutcome{leaseUndone, outbox.ErrLeaseLost}
	}
	if b.txErr != nil {
		return s.onBrokenTx(ctx, b, b.txErr, true)
	}
	a := s.l.end(lease, s.shard, ctx.Err() != nil)
	s.giveUp(dbCtx, a)
	moved, err := s.endIn(dbCtx, tx, a)
	if err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR" { // the session is still alive
			return s.onBrokenTx(ctx, b, err, false) // a deferred constraint, for example
		}
		return leaseOutcome{leaseUndone, err}
	}
	s.l.rep.Statement("the transaction of the handlers", began, nil)
	s.txSearch.onCommitted(lease.entries())
	s.rememberRetries(a)
	s.run.account(a, moved)
	return leaseOutcome{kind: leaseCommitted}
}

// beginTx opens the transaction of a lease.
func (s *shardLoop) beginTx(ctx context.Context) (pgx.Tx, error) {
	ctx, cancel := s.l.limited(ctx)
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

// endIn ends the lease of a in tx, and commits if this process still had the lease.
func (s *shardLoop) endIn(ctx context.Context, tx pgx.Tx, a *advance) (moved bool, err error) {
	ctx, cancel := s.l.limited(ctx)
	defer cancel()
	b := &pgx.Batch{}
	a.encode(errclass.EncodingOf(tx.Conn()))
	s.l.db.Guard(b) // for these statements, not for those of handlers
	s.queueEnd(b, a, &moved)
	if err = tx.SendBatch(ctx, b).Close(); err == nil && moved {
		err = tx.Commit(ctx)
	}
	if err != nil || !moved {
		a.restoreReturned()
		return false, err
	}
	return true, nil
}

// onBrokenTx handles a transaction that a handler made unusable. If it broke while a handler was running, this is the
// handler that was started last. If it broke at the commit, it is one of them. If only one was started, its event has
// failed. Otherwise each of the next leases takes fewer events, until the event is found.
func (s *shardLoop) onBrokenTx(ctx context.Context, b *batch, cause error, running bool) leaseOutcome {
	started := b.lease.resetStarted()
	switch {
	case ctx.Err() != nil, len(started) == 0:
		return leaseOutcome{leaseUndone, cause}
	case len(started) > 1:
		s.txSearch.onBroken(started, running)
		if running { // the connection may be lost because of the database
			return leaseOutcome{leaseUndone, cause}
		}
		return leaseOutcome{leaseBroken, cause}
	}
	s.l.decide(started[0], errclass.Of(fmt.Errorf("transaction of the handler: %w", cause)))
	s.txSearch.found(started[0])
	return leaseOutcome{kind: leaseHandled}
}
