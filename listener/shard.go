package listener

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/doorbell"
	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// shard is the shell of a core: it does what the core says, and tells it what came of that. It decides nothing. One
// goroutine owns it. It makes most calls itself, one after the other; handlers, reading ahead and renewing go on
// beside, and their answers come through events.
type shard struct {
	l      *Listener
	run    *listenerRun
	ctx    context.Context // when it ends, no more handlers are started
	number int
	core   *core.Core
	told   bool            // that ctx has ended
	events chan core.Event // has room for all answers that can be under way
	timer  *time.Timer

	loan         *doorbell.Loan // of the step under way
	began        time.Time      // of the latest round trip
	batch        *batch
	tx           pgx.Tx
	txBegan      time.Time
	dropPrefetch context.CancelFunc
	cancelRenew  context.CancelFunc
}

// shard returns the shell of a new core. events limits how many handlers it starts; 0 means no limit.
func (r *listenerRun) shard(number, shards, events int) *shard {
	l := r.l
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	cfg := l.coreConfig()
	cfg.Shard, cfg.Shards, cfg.Drain, cfg.Events = number, shards, r.drained != nil, events
	return &shard{
		l: l, run: r, number: number, events: make(chan core.Event, 4), timer: timer,
		core: core.New(cfg),
	}
}

// coreConfig is what a core is told of l.
func (l *Listener) coreConfig() core.Config {
	ahead := time.Duration(0)
	if l.publishes {
		ahead = relayAhead
	}
	return core.Config{
		BatchSize: l.cfg.BatchSize, LeaseBatches: l.leaseBatches(), ParkedKeys: config.ParkedKeyBatch,
		Grows: l.grows, Together: l.together(),
		Transactional: l.transactional, ParkKeys: l.spec.ParkKeys, Concurrency: l.cfg.Concurrency,
		MaxAttempts: l.cfg.MaxAttempts, Batch: l.spec.Batch.Size, Wait: l.spec.Batch.Wait,
		BaseDelay: l.spec.Retry.BaseDelay, MaxDelay: l.spec.Retry.MaxDelay, FirstPause: l.cfg.Breaker.FirstPause, WaitPause: l.cfg.Breaker.MaxPause,
		LeaseDuration: l.cfg.LeaseDuration, PollInterval: l.cfg.PollInterval, ShutdownTimeout: l.cfg.ShutdownTimeout,
		PauseLimit: l.pauseLimit, LeaseAge: l.leaseAge, AheadWithin: ahead, TakeOverAfter: l.takeOverAfter, Targets: l.coreTargets(),
		KeepHeaders: l.hooks.WantsEnds(), NewID: uuid.New,
	}
}

func (l *Listener) coreTargets() []core.Target {
	all := make([]core.Target, len(l.targets.All))
	for i, t := range l.targets.All {
		all[i] = t
	}
	return all
}

// loop runs the core until it is over.
func (s *shard) loop(ctx context.Context) {
	defer s.timer.Stop()
	s.ctx = ctx
	stop, giveUp, cut := ctx.Done(), s.run.GiveUp, s.run.DBCtx.Done()
	var wakeups chan *doorbell.Loan
	if s.run.drained == nil {
		wakeups = s.run.wakeups[s.number]
	}
	s.step(core.Started{})
	for !s.core.Over() {
		select {
		case in := <-s.events:
			s.step(in)
		case loan := <-wakeups:
			s.loan = loan
			s.step(core.Woken{})
			s.loan.Return()
		case <-s.timer.C:
			s.step(core.Tick{})
		case <-stop:
			stop = nil
			s.tellStop()
		case <-giveUp:
			giveUp = nil
			s.step(core.GiveUp{})
		case <-cut:
			cut = nil
			s.step(core.DatabaseOver{})
		}
	}
}

// step tells the core what happened, does what the core says, and goes on with the answers.
func (s *shard) step(in core.Event) {
	for in != nil {
		if s.ctx.Err() != nil {
			s.tellStop()
		}
		in = s.doAll(s.core.Step(time.Now(), in))
	}
}

// tellStop tells the core, once, that ctx has ended.
func (s *shard) tellStop() {
	if !s.told {
		s.told = true
		s.doAll(s.core.Step(time.Now(), core.Stop{}))
	}
}

// doAll does what the core says. The last command may be a call, whose answer it returns.
func (s *shard) doAll(commands []core.Command) (answer core.Event) {
	for _, cmd := range commands {
		answer = s.do(cmd)
	}
	return answer
}

// do is the table from a call to what makes it, whose answer it returns. Other commands have none.
func (s *shard) do(cmd core.Command) core.Event {
	switch cmd := cmd.(type) {
	case core.Check:
		return s.check()
	case core.Fill:
		return s.fill()
	case core.RoundTrip:
		return s.roundTrip(cmd)
	case core.AskLease:
		return s.askLease()
	case core.ReadFirst:
		return s.readFirst(cmd.Lease)
	case core.TakeParked:
		return s.takeParked(cmd)
	case core.Try:
		return s.try(cmd)
	case core.Charge:
		return s.charge(cmd)
	case core.Begin:
		return s.begin()
	case core.Commit:
		return s.commit(cmd.End)
	case core.Abandon:
		return s.batch.abandon()
	case core.FindProcess:
		return s.findKnowing(cmd.Entry)
	case core.Reshard:
		return s.reshard()
	case core.ReadShards:
		return s.readShards()
	}
	s.start(cmd)
	return nil
}

// start is the table from what goes on beside, or has no answer, to what does it.
func (s *shard) start(cmd core.Command) {
	switch cmd := cmd.(type) {
	case core.Handle:
		s.handle(cmd.Batch)
	case core.Prefetch:
		s.prefetch(cmd.Next)
	case core.Renew:
		s.renew(cmd)
	case core.DropPrefetch:
		s.dropPrefetch()
	case core.CancelRenew:
		s.cancelRenew()
	case core.StopHandlers:
		s.batch.loseLease()
	case core.Rollback:
		s.rollback(s.tx)
	case core.RollbackLater:
		s.batch.rollbackLater()
	case core.WakeOthers:
		s.wakeOthers(cmd)
	case core.RequestShard:
		s.requestShard()
	case core.Timer:
		s.timer.Reset(time.Until(cmd.At))
	case core.Report:
		s.run.states <- shardReport{shard: s.number, activity: cmd.Activity, pause: cmd.Pause}
	default:
		s.tell(cmd)
	}
}

// tell is the table from what is to be told to what tells it.
func (s *shard) tell(cmd core.Command) {
	switch cmd := cmd.(type) {
	case core.TellTaken:
		s.l.tellTaken(cmd)
	case core.TellEnd:
		s.tellEnd(cmd)
	case core.TellUndone:
		s.l.tellEnds(cmd.Lease, cmd.Ours)
	case core.TellRolledBack:
		s.l.tellRolledBack(s.number, cmd)
	case core.TellLost:
		s.l.tellLost(s.number)
	case core.TellNewer:
		s.l.tellNewer(cmd)
	}
}

// failed is the answer of a call that has failed with err.
func (s *shard) failed(err error) core.Event {
	return core.Failed{Err: err, Final: s.run.DBCtx.Err() != nil}
}

// handle calls the handlers of a batch.
func (s *shard) handle(of *core.Batch) {
	s.batch = s.newBatch(of)
	s.batch.start()
}

// prefetch reads the next batch of a lease.
func (s *shard) prefetch(p *core.NextBatch) {
	ctx, cancel := s.l.limited(s.run.DBCtx)
	s.dropPrefetch = cancel
	go func() {
		defer cancel()
		began := time.Now()
		p.Failed = s.readNext(ctx, p, p.Size) != nil
		p.Took = time.Since(began)
		s.events <- core.Prefetched{Next: p}
	}()
}

// renew renews a lease.
func (s *shard) renew(cmd core.Renew) {
	ctx, cancel := context.WithCancel(s.run.DBCtx)
	s.cancelRenew = cancel
	go func() {
		defer cancel()
		s.events <- s.renewLease(ctx, cmd)
	}()
}
