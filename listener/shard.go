package listener

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/postgres/doorbell"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
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
		more := ctx.Err() == nil && !s.run.budget.spent()
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
		began := time.Now()
		take := more && !s.leavesToOthers()
		moved, lease, err = s.roundTrip(s.run.DBCtx, a, take)
		if s.run.DBCtx.Err() == nil && (take || a != nil) {
			s.l.rep.Statement("read and settle", began, err)
		}
		if err != nil {
			if s.run.DBCtx.Err() != nil {
				return s.unsettled(a, err)
			}
			if s.run.drained != nil {
				return err
			}
			s.pause(ctx, a != nil)
			continue
		}
		s.dbRetry.Reset()
		if a != nil {
			if moved {
				s.l.rep.Statement(keepingLease, began, nil)
			}
			s.run.account(a, moved)
			a = nil
		}
		if s.wakesOthers {
			s.wakesOthers = false
			s.l.wakeOthers(s.run.DBCtx)
			s.l.signals.handedOver.Emit()
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
		if lease.idle() {
			s.worked = false
			s.run.unreport()
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
	queries.ListenerWaitRow
	due time.Time // when something falls due without an enqueue; zero if nothing does
}

// check reads what the shard waits for. It returns nil if that fails, or if ctx has ended.
func (s *shardLoop) check(ctx context.Context) (*shardWait, error) {
	if ctx.Err() != nil {
		return nil, nil
	}
	began := time.Now()
	row, ok, err := s.readWait(s.run.DBCtx)
	if s.run.drained == nil && s.run.DBCtx.Err() == nil {
		s.l.rep.Statement("look for events", began, err)
	}
	switch {
	case err != nil && s.run.drained != nil:
		return nil, err
	case err != nil:
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
		began := time.Now()
		_, err := s.l.reshard(s.run.DBCtx)
		s.l.rep.Statement("change the number of shards", began, err)
		state, limit = shardWaiting, min(limit, 20*time.Millisecond)
	case (w.ForeignLease || w.Kept) && s.worked: // the shard was just handed to a process that may be asleep
		s.l.wakeOthers(s.run.DBCtx)
	case (w.ForeignLease || w.Kept) && !s.l.metNewer():
		s.requestShard(ctx)
	}
	if w.ForeignLease || w.Paused || w.Blocked {
		state = shardWaiting
	}
	pause := s.pace.Pause()
	var due <-chan time.Time // the watch wakes an idle shard
	switch wait := time.Until(w.due); {
	case s.leavesToOthers():
		state, due = shardWaiting, time.After(max(time.Until(s.newerUntil), pause))
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

// leavesToOthers reports whether the shard is not to be taken now, because its next event has an unknown version. A Drain
// leaves it permanently.
func (s *shardLoop) leavesToOthers() bool {
	return !s.newerUntil.IsZero() && (s.run.drained != nil || time.Now().Before(s.newerUntil))
}

// requestShard requests the shard if its holder has at least two more shards than this process.
func (s *shardLoop) requestShard(ctx context.Context) {
	s.run.requesting.Lock()
	defer s.run.requesting.Unlock()
	limited, cancel := s.l.limited(ctx)
	defer cancel()
	began := time.Now()
	_, err := s.l.db.Each(s.l.pool).ListenerWant(limited, queries.ListenerWantParams{
		WorkerID: pgvalue.UUID(s.l.cfg.WorkerID), Listener: s.l.spec.Name, Shard: int32(s.shard),
	})
	if ctx.Err() == nil {
		s.l.rep.Statement("request a shard", began, err)
	}
}
