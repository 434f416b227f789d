package listener

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxgen/outboxgen/internal/backoff"
	"github.com/outboxgen/outboxgen/internal/dbschema"
	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/doorbell"
	"github.com/outboxgen/outboxgen/internal/mark"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
	"github.com/outboxgen/outboxgen/outbox"
)

// shardLoop takes leases of one shard until its context ends. The state that outlives a lease is in the database, so
// any process can continue from there.
type shardLoop struct {
	*cursor
	run     *listenerRun
	shards  int           // in this generation
	worked  bool          // it had a lease since it was idle
	slow    bool          // the latest batch was too slow for another one in its lease
	pace    doorbell.Pace // of the checks
	dbRetry backoff.Retrier
}

// Conditions that end all loops of a generation.
var (
	errReshaped = errors.New("the listener has another number of shards now")
	errDetached = errors.New("the listener was detached")
)

// loop runs until ctx ends and its last lease is ended, or until the number of shards changes.
//
// It sleeps when it has read what the shard waits for and then got no lease. In the other order it would miss events
// that fall due in between.
func (s *shardLoop) loop(ctx context.Context) error {
	var a *advance
	var waitsFor *shardWait
	var err error
	for {
		more := ctx.Err() == nil
		if a == nil && !more {
			return nil
		}
		if s.afterNo == unknownNo {
			s.pace.Start()
			if waitsFor, err = s.check(ctx); err != nil {
				return err
			}
			if s.afterNo == unknownNo {
				continue // the database failed, or ctx has ended
			}
		}
		if a != nil && !more {
			a.params.Release = true
		}
		var moved bool
		var lease *shardLease
		if moved, lease, err = s.roundTrip(s.run.DBCtx, a, more); err != nil {
			if s.run.DBCtx.Err() != nil {
				return s.unsettled(a, err)
			}
			if s.run.drained != nil {
				return err
			}
			s.l.log.Error("database round trip failed", "shard", s.shard, "error", err)
			s.pause(ctx, a != nil)
			continue
		}
		s.dbRetry.Reset()
		if a != nil {
			s.run.account(a, moved)
			a = nil
		}
		if lease == nil {
			if waitsFor != nil && s.run.drained != nil {
				return nil
			}
			if waitsFor != nil {
				s.pace.Stop()
				s.sleep(ctx, waitsFor)
			}
			s.pace.Start()
			if waitsFor, err = s.check(ctx); err != nil {
				return err
			}
			continue
		}
		waitsFor = nil
		s.run.report(s.shard, shardWorking, 0)
		s.worked = true
		if a, err = s.handleLease(ctx, lease); err != nil {
			return err
		}
		if lease.shards != s.shards {
			return s.endForReshard(a)
		}
	}
}

// endForReshard ends the lease of a without taking another.
func (s *shardLoop) endForReshard(a *advance) error {
	if a != nil {
		moved, _, err := s.roundTrip(s.run.DBCtx, a, false)
		if err != nil {
			return s.unsettled(a, err) // its lease runs out
		}
		s.run.account(a, moved)
	}
	return errReshaped
}

func (s *shardLoop) unsettled(a *advance, err error) error {
	if a == nil {
		return nil
	}
	return fmt.Errorf("stop listener: %d events of shard %d could not be settled: %w", len(a.lease.entries()), s.shard, err)
}

// pause waits before the next statement after an error. If ctx ends it returns early, unless pending says that a lease
// has yet to be ended.
func (s *shardLoop) pause(ctx context.Context, pending bool) {
	if pending {
		ctx = s.run.DBCtx
	}
	timer := time.NewTimer(min(s.dbRetry.Next(), s.l.pauseLimit))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// shardWait is what a shard without a lease waits for.
type shardWait struct {
	dbsqlc.ListenerWaitRow
	due time.Time // when something falls due without an enqueue; zero if nothing does
}

// check reads what the shard waits for. It returns nil if that fails, or if ctx has ended.
func (s *shardLoop) check(ctx context.Context) (*shardWait, error) {
	if ctx.Err() != nil {
		return nil, nil
	}
	row, ok, err := s.readWait(s.run.DBCtx)
	switch {
	case err != nil && s.run.drained != nil:
		return nil, err
	case err != nil:
		s.l.log.Error("database round trip failed", "shard", s.shard, "error", err)
		s.pause(ctx, false)
		return nil, nil
	case !ok || int(row.Shards) != s.shards:
		return nil, errReshaped
	}
	w := &shardWait{ListenerWaitRow: row}
	if row.WaitUs >= 0 {
		w.due = time.Now().Add(time.Duration(row.WaitUs)*time.Microsecond + time.Millisecond)
	}
	return w, nil
}

// sleep waits until the shard may have something to do.
func (s *shardLoop) sleep(ctx context.Context, w *shardWait) {
	state := shardIdle
	limit := s.l.cfg.PollInterval
	switch {
	case w.Resharding:
		if _, err := s.l.reshard(s.run.DBCtx); err != nil {
			s.l.log.Error("reshard", "error", err)
		}
		state, limit = shardWaiting, min(limit, 20*time.Millisecond)
	case (w.ForeignLease || w.Kept) && s.worked: // the shard was just handed to a process that may be asleep
		s.l.wakeOthers(s.run.DBCtx)
	case w.ForeignLease || w.Kept:
		s.requestShard(ctx)
	}
	if w.ForeignLease || w.Paused || w.Blocked {
		state = shardWaiting
	}
	pause := s.pace.Pause()
	var due <-chan time.Time // the watch wakes an idle shard
	switch wait := time.Until(w.due); {
	case w.Ready: // check again when the preferred process has had time to take it
		if state == shardIdle {
			state = shardChecking
		}
		due = time.After(max(time.Until(s.vacancy.since.Add(s.l.takeOverAfter)), pause))
	case !w.due.IsZero() && (wait < limit || state == shardIdle):
		due = time.After(wait)
	case state == shardWaiting:
		due = time.After(max(backoff.Within(limit), pause))
	}
	s.worked = false
	s.run.report(s.shard, state, pause)
	select {
	case <-ctx.Done():
	case <-due:
	case <-s.run.wakeups[s.shard]:
	}
}

// requestShard requests the shard if its holder has at least two more shards than this process.
func (s *shardLoop) requestShard(ctx context.Context) {
	s.run.requesting.Lock()
	defer s.run.requesting.Unlock()
	limited, cancel := s.l.limited(ctx)
	defer cancel()
	_, err := s.l.db.Each(s.l.pool).ListenerWant(limited, dbsqlc.ListenerWantParams{
		WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), Listener: s.l.spec.Name, Shard: int32(s.shard),
	})
	if err != nil && ctx.Err() == nil {
		s.l.log.Warn("request a shard", "shard", s.shard, "error", err)
	}
}

// handleLease handles the events of a lease and returns its end; nil if that is written already or cannot be written.
func (s *shardLoop) handleLease(ctx context.Context, lease *shardLease) (*advance, error) {
	if lease.parkedDue {
		if err := s.takeParked(s.run.DBCtx, lease); err != nil {
			s.l.log.Error("database round trip failed", "shard", s.shard, "error", err)
			s.repeat(lease) // nothing of it was handled
			s.pause(ctx, false)
			return nil, nil
		}
	}
	if ours, err := s.charge(s.run.DBCtx, lease); err != nil {
		s.l.log.Error("database round trip failed", "shard", s.shard, "error", err)
		s.repeat(lease)
		s.pause(ctx, false)
		return nil, nil
	} else if !ours {
		return nil, nil
	}
	if s.l.transactional {
		return s.inTransaction(ctx, lease)
	}
	if err := s.handleBatches(ctx, lease); err != nil {
		// The results of the other handlers are kept. Nobody gets the shard until the lease runs out, because some
		// handlers still run.
		a := s.l.end(lease, s.shard, false)
		a.params.LetLeaseExpire = true
		moved, _, ending := s.roundTrip(s.run.DBCtx, a, false)
		if ending == nil && !moved {
			ending = outbox.ErrLeaseLost
		}
		return nil, errors.Join(err, ending)
	}
	a := s.l.end(lease, s.shard, ctx.Err() != nil)
	s.rememberRetries(a)
	return a, nil
}

// handleBatches handles the first batch of the lease, and then the next batches of its window for as long as the lease
// may continue.
func (s *shardLoop) handleBatches(ctx context.Context, lease *shardLease) error {
	lease.began = time.Now()
	for {
		p := s.prefetch(ctx, lease)
		b := s.l.newBatch(ctx, lease, nil)
		b.of = s.run
		started := time.Now()
		err := s.handleBatch(b)
		s.slow = time.Since(started) > s.l.leaseAge/2
		if err != nil || !s.continueWith(ctx, b, p) {
			p.drop()
			return err
		}
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
func (s *shardLoop) inTransaction(ctx context.Context, lease *shardLease) (*advance, error) {
	dbCtx := s.run.DBCtx
	tx, err := s.beginTx(dbCtx)
	if err != nil {
		return s.retryLease(ctx, lease, err)
	}
	undo := func() {
		end, cancel := s.l.limited(dbCtx)
		defer cancel()
		_ = tx.Rollback(end)
	}
	b := s.l.newBatch(ctx, lease, tx)
	b.entries = s.txSearch.pick(b.entries)
	if err := s.handleBatch(b); err != nil {
		go func() { // the handler, for which Run has failed, uses the transaction until it returns
			<-b.finished
			undo()
		}()
		return nil, err
	}
	defer undo()
	if b.leaseLost { // takes precedence over what has happened since
		return s.retryLease(ctx, lease, outbox.ErrLeaseLost)
	}
	if b.txErr != nil {
		return s.onBrokenTx(ctx, b, b.txErr, true)
	}
	a := s.l.end(lease, s.shard, ctx.Err() != nil)
	moved, err := s.endIn(dbCtx, tx, a)
	if err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR" { // the session is still alive
			return s.onBrokenTx(ctx, b, err, false) // a deferred constraint, for example
		}
		return s.retryLease(ctx, lease, err)
	}
	s.txSearch.onCommitted(lease.entries())
	s.rememberRetries(a)
	s.run.account(a, moved)
	return nil, nil
}

// beginTx opens the transaction of a lease.
func (s *shardLoop) beginTx(ctx context.Context) (pgx.Tx, error) {
	ctx, cancel := s.l.limited(ctx)
	defer cancel()
	tx, err := s.l.pool.BeginTx(ctx, dbschema.ReadCommitted)
	if err != nil {
		return nil, err
	}
	// A process that is stopped in the middle of a transaction must not keep the rows locked that its handlers have
	// locked.
	const guard = "SELECT set_config('idle_in_transaction_session_timeout', $1, true)"
	if _, err := tx.Exec(ctx, guard, fmt.Sprint(s.l.cfg.LeaseDuration.Milliseconds())); err != nil {
		return nil, errors.Join(err, tx.Rollback(ctx))
	}
	return tx, nil
}

// endIn ends the lease of a in tx, and commits if this process still had the lease.
func (s *shardLoop) endIn(ctx context.Context, tx pgx.Tx, a *advance) (moved bool, err error) {
	ctx, cancel := s.l.limited(ctx)
	defer cancel()
	b := &pgx.Batch{}
	a.encode(mark.EncodingOf(tx.Conn()))
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

// retryLease discards the work of a lease that failed for another reason than a handler. If the work was committed
// nevertheless, the next lease continues after it.
func (s *shardLoop) retryLease(ctx context.Context, lease *shardLease, err error) (*advance, error) {
	a := s.undoLease(ctx, lease, err)
	if a == nil {
		s.pause(ctx, false)
	}
	return a, nil
}

// undoLease makes the next lease the same one again. If ctx has ended it returns the end of the lease instead, so that
// the next holder need not wait or handle events one by one.
func (s *shardLoop) undoLease(ctx context.Context, lease *shardLease, err error) *advance {
	s.l.log.Error("events are rolled back and will be handled again", "shard", s.shard, "count", len(lease.events)+len(lease.parked), "error", err)
	s.repeat(lease)
	if ctx.Err() == nil {
		return nil
	}
	lease.resetStarted()
	return s.l.end(lease, s.shard, true)
}

// onBrokenTx handles a transaction that a handler made unusable. If it broke while a handler was running, this is the
// handler that was started last. If it broke at the commit, it is one of them. If only one was started, its event has
// failed. Otherwise each of the next leases takes fewer events, until the event is found.
func (s *shardLoop) onBrokenTx(ctx context.Context, b *batch, cause error, running bool) (*advance, error) {
	lease := b.lease
	started := lease.resetStarted()
	switch {
	case ctx.Err() != nil, len(started) == 0:
		return s.retryLease(ctx, lease, cause)
	case len(started) > 1 && running: // the connection may be lost because of the database
		s.txSearch.onBroken(started, running)
		return s.retryLease(ctx, lease, cause)
	case len(started) > 1:
		s.txSearch.onBroken(started, running)
		return s.undoLease(ctx, lease, cause), nil
	}
	s.l.decide(started[0], mark.Of(fmt.Errorf("transaction of the handler: %w", cause)))
	s.txSearch.found(started[0])
	a := s.l.end(lease, s.shard, false)
	s.rememberRetries(a)
	return a, nil
}
