package simtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/testing/simulation"
	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// later tells the core something later, unless it is gone by then.
func (s *shard) later(d time.Duration, in core.Event) {
	s.p.w.after(d, func() { s.step(in) })
}

func (s *shard) name() string { return fmt.Sprint(s.p.name, "/", s.number) }

// step tells the core what happened, and does what it says.
func (s *shard) step(in core.Event) {
	if s.p.gone || s.core.Over() {
		return
	}
	if s.p.frozen {
		s.p.held = append(s.p.held, func() { s.step(in) })
		return
	}
	w := s.p.w
	w.result.Steps++
	for _, cmd := range slices.Clone(s.core.Step(w.now, in)) {
		s.do(cmd)
	}
	if w.chance(50) { // a tick may come at any time
		s.later(w.random(5*time.Millisecond), core.Tick{})
	}
	if s.core.Over() {
		w.note(s.name(), fmt.Sprint("is over: ", s.core.State()))
		if err := s.core.Err(); err != nil && !w.storm && !s.p.stopping {
			w.fail("core", "shard %d has stopped: %s", s.number, err)
		}
		s.onOver()
	}
}

var errDown = errors.New("the database does not answer")

// call runs a statement, which may fail, and tells the core what comes of it.
func (s *shard) call(what string, run func() core.Event, failed func(final bool) core.Event) {
	s.send(what, run, failed, s.later)
}

// send runs a statement, which may fail, and tells of what comes of it.
func (s *shard) send(
	what string, run func() core.Event, failed func(final bool) core.Event, tell func(time.Duration, core.Event),
) {
	w, epoch := s.p.w, s.p.w.epoch
	there, back := w.random(2*time.Millisecond), w.random(time.Millisecond)
	if s.p.cut {
		tell(0, failed(true))
		return
	}
	f, faulty := w.faults.First(simulation.Cut, simulation.Unanswered, simulation.Late)
	if faulty {
		w.excused = true
		w.note(s.name(), "FAULT: this "+what+" is "+f.Kind.String())
	} else if w.chance(100) {
		there += w.random(leaseDuration)
	}
	arrives := func() (core.Event, bool) {
		if s.p.unreachable() || epoch != w.epoch || faulty && f.Kind == simulation.Cut {
			return nil, false
		}
		if s.p.gone && w.IntN(2) == 0 { // the server may have got it nevertheless
			return nil, false
		}
		answer := run()
		w.checkGrowth()
		return answer, !faulty && epoch == w.epoch
	}
	if faulty && f.Kind == simulation.Late {
		s.late = true
		tell(there+back, failed(false))
		w.after(f.UpTo(leaseDuration), func() {
			w.note(s.name(), "FAULT: the late "+what+" takes effect")
			if no := w.leaseNo(s.number); w.holds(s.number, s.p.id, no, "") {
				arrives()
				if !w.holds(s.number, s.p.id, no, "") {
					s.endedLate = no
				}
				return
			}
			arrives()
		})
		return
	}
	w.after(there, func() {
		if answer, answered := arrives(); answered {
			tell(back, answer)
		} else {
			tell(back, failed(false))
		}
	})
}

func failedEvent(final bool) core.Event { return core.Failed{Err: errDown, Final: final} }

// do does what the core says.
func (s *shard) do(cmd core.Command) {
	w := s.p.w
	switch cmd := cmd.(type) {
	case core.Check, core.Fill, core.RoundTrip, core.AskLease, core.ReadFirst, core.TakeParked, core.Try, core.Charge,
		core.Begin, core.Reshard, core.ReadShards:
		s.ask(cmd)
	case core.Handle, core.StopHandlers, core.Abandon, core.Commit:
		s.doBatch(cmd)
	case core.TellTaken, core.TellUndone, core.TellEnd:
		s.hear(cmd)
	case core.Prefetch:
		s.prefetch(cmd.Next)
	case core.Renew:
		s.renew(cmd)
	case core.FindProcess:
		s.later(w.random(time.Millisecond), core.ProcessFound{Worker: w.knowing(s.p, cmd.Entry)})
	case core.TellNewer:
		s.p.newerAt = w.now
	case core.WakeOthers:
		w.wakeAll()
	case core.RequestShard:
		if s.number < len(w.shards) && w.IntN(4) == 0 {
			w.shards[s.number].wantedBy = s.p.id
			w.flush()
		}
	case core.Timer:
		s.setTimer(cmd.At)
	case core.Report:
		s.activity = cmd.Activity
		s.p.report()
	}
}

// ask sends the statement of a command.
func (s *shard) ask(cmd core.Command) {
	if trip, is := cmd.(core.RoundTrip); is && trip.End != nil && trip.End.Lease == s.renewing {
		s.p.w.fail("core", "a lease of shard %d is ended while it is renewed", s.number)
	}
	sent := s.p.w.now
	s.call(strings.TrimPrefix(fmt.Sprintf("%T", cmd), "core."), func() core.Event { return s.answer(cmd, sent) }, failedEvent)
}

// answer does in the tables what the statement of a command does, and returns its answer.
func (s *shard) answer(cmd core.Command, sent time.Time) core.Event {
	w := s.p.w
	switch cmd := cmd.(type) {
	case core.Check:
		row, ok := w.wait(s.number, s.p.id, w.db())
		return core.Checked{Gone: !ok, Wait: row, NewerAt: s.p.newerAt}
	case core.Fill:
		return w.fill(s.number, w.db())
	case core.RoundTrip:
		return s.roundTrip(cmd, sent)
	case core.AskLease:
		return w.leaseState(s.number)
	case core.ReadFirst:
		lease := cmd.Lease
		if lease.Events, lease.Scanned = nil, 0; w.holds(s.number, s.p.id, lease.No, "") {
			w.read(s.number, lease, s.p.topics)
		}
		return core.Read{}
	case core.TakeParked:
		events := w.takeParked(s.number, s.p, cmd, w.db())
		w.flushIf(len(events) > 0)
		return core.ParkedTaken{Events: events}
	case core.Try:
		tried := w.try(s.number, s.p, cmd.Lease, w.mode.Together)
		w.flushIf(tried.Ours)
		return tried
	case core.Charge:
		ours := w.charge(s.number, s.p.id, cmd.Lease.No, cmd.Entry.Seq, cmd.Entry.Attempt)
		w.flushIf(ours)
		return core.Charged{Ours: ours}
	case core.Reshard:
		stepped := w.reshard()
		w.flushIf(stepped)
		return core.Resharded{Stepped: stepped}
	case core.ReadShards:
		return core.Registered{Shards: len(w.shards)}
	}
	return core.Begun{} // the answer to Begin
}

// doBatch does what the core says of a batch.
func (s *shard) doBatch(cmd core.Command) {
	switch cmd := cmd.(type) {
	case core.Handle:
		s.handle(cmd.Batch)
	case core.StopHandlers:
		s.p.w.counts["lost"]++
		if s.p.w.lacks("stop-handlers") {
			return
		}
		s.lost = s.lost || s.batch == cmd.Batch
		cmd.Batch.LoseLease()
	case core.Abandon:
		s.lost = s.lost || s.batch == cmd.Batch
		cmd.Batch.Abandon()
		s.later(0, core.Handled{Batch: cmd.Batch, Running: cmd.Batch.Running()})
	case core.Commit:
		s.commit(cmd.End)
	}
}

// hear checks what the core tells observers of its leases.
func (s *shard) hear(cmd core.Command) {
	w := s.p.w
	switch cmd := cmd.(type) {
	case core.TellTaken:
		if cmd.Lease != nil && s.untold != nil && s.untold != cmd.Lease {
			w.fail("core", "nobody was told of the end of a lease of shard %d", s.number)
		}
		if cmd.Lease != nil {
			s.untold = cmd.Lease
		}
	case core.TellUndone:
		s.untold = nil
	case core.TellEnd:
		s.untold = nil
		switch ended := w.ended[cmd.End.Lease.ID]; {
		case cmd.Ours && !ended:
			w.fail("core", "shard %d counts the end of a lease that was lost", s.number)
		case !cmd.Ours && ended && !s.late && s.number < len(w.shards) && w.shards[s.number].leaseID == cmd.End.Lease.ID:
			w.fail("core", "shard %d takes a lease for lost that it has ended", s.number)
		}
	}
}

// prefetch reads a batch ahead.
func (s *shard) prefetch(p *core.NextBatch) {
	w := s.p.w
	_, cut := w.faults.Draw(simulation.Cut)
	w.after(w.random(2*time.Millisecond), func() {
		if p.Failed = cut || s.p.unreachable(); !p.Failed {
			w.readNext(s.number, s.p, p, p.Size)
		}
		d := time.Duration(0)
		if w.chance(10) {
			d = w.random(200 * time.Millisecond)
		}
		s.later(d, core.Prefetched{Next: p})
	})
}

// setTimer makes a tick at a time, and none that was set before.
func (s *shard) setTimer(at time.Time) {
	w := s.p.w
	s.tick++
	tick := s.tick
	if w.lacks("timer") && w.IntN(10) == 0 {
		return
	}
	w.after(max(at.Sub(w.now), 0), func() {
		if tick == s.tick {
			s.step(core.Tick{})
		}
	})
}

// wakeAll wakes all processes.
func (w *world) wakeAll() {
	for _, p := range w.procs {
		if !p.gone {
			p.wakeAll()
		}
	}
}

// report asks the doorbell when all shards of the process have found nothing. When it watches, each checks once more.
func (p *process) report() {
	idle := false
	for _, s := range p.cores {
		if s.activity == core.IsWorking || s.activity == core.IsChecking {
			p.asleep = false
			return
		}
		idle = idle || s.activity == core.IsIdle
	}
	if idle && !p.asleep {
		p.w.after(p.w.random(time.Millisecond), func() {
			if !p.gone && !p.asleep {
				p.wakeAll()
				p.asleep = true
			}
		})
	}
}

// roundTrip ends a lease and takes the next one.
func (s *shard) roundTrip(cmd core.RoundTrip, sent time.Time) core.Event {
	w := s.p.w
	var answer core.RoundTripDone
	if cmd.End != nil {
		w.checkEnd(s.number, s.p.id, cmd.End, nil)
		end := func() bool { return w.advance(s.number, s.p.id, cmd.End, w.db()) }
		if !w.storm && s.p.stopping && w.lacks("release-at-end") {
			end = func() bool { w.ended[cmd.End.Lease.ID] = true; return true }
		}
		if cmd.Take != nil && s.number < len(w.shards) { // the commit of the lease that follows is flushed, if there is one
			answer.Ours = w.endUnflushed(s.number, w.shards[s.number], end)
		} else {
			answer.Ours = end()
			w.flushIf(answer.Ours)
		}
	}
	if t := cmd.Take; t != nil {
		answer.Lease = &core.Lease{
			ID: t.ID, BatchSize: t.BatchSize, ScanSize: t.ScanSize, Deadline: sent.Add(leaseDuration),
		}
		if w.lacks("deadline") {
			answer.Lease.Deadline = w.now.Add(2 * leaseDuration)
		}
		w.take(s.number, s.p.id, t, w.db(), answer.Lease)
		w.flushIf(answer.Lease.No > 0 && !w.lacks("take-flush"))
		if answer.Lease.No > 0 {
			w.note(s.name(), fmt.Sprintf("takes lease %d from event %d on", answer.Lease.No, answer.Lease.LastSeq+1))
		}
		if t.Read && answer.Lease.No > 0 {
			w.read(s.number, answer.Lease, s.p.topics)
		}
	}
	return answer
}

// commit ends a lease in its transaction. What its handlers did takes effect then.
func (s *shard) commit(a *core.End) {
	w := s.p.w
	done := s.effects
	if a.Lease == s.renewing {
		w.fail("core", "a lease of shard %d is ended while it is renewed", s.number)
	}
	for _, seq := range done {
		if w.poisonTx.has(seq) {
			s.later(w.random(time.Millisecond), core.CommitFailed{
				Err: errDown, Alive: true, Result: errclass.Result{Class: errclass.ClassFailed, Text: "poison"},
			})
			return
		}
	}
	s.call("transaction", func() core.Event {
		w.checkEnd(s.number, s.p.id, a, done)
		moved := w.advance(s.number, s.p.id, a, w.db())
		w.flushIf(moved)
		if moved || w.lacks("transaction") {
			for _, seq := range done {
				w.effect(s, seq)
			}
		}
		return core.Committed{Ours: moved}
	}, func(bool) core.Event { return core.CommitFailed{Err: errDown} })
}

// handle runs the handlers of a batch.
func (s *shard) handle(b *core.Batch) {
	s.batch, s.lost, s.effects, s.workers = b, false, nil, min(s.p.w.mode.Concurrency, b.Len())
	if s.workers == 0 {
		s.later(0, core.Handled{Batch: b})
		return
	}
	for range s.workers {
		s.worker(b)
	}
}

func (s *shard) worker(b *core.Batch) {
	w := s.p.w
	if s.p.gone {
		return
	}
	if s.p.frozen {
		s.p.held = append(s.p.held, func() { s.worker(b) })
		return
	}
	b.Stopping = s.p.stopping
	if w.mode.Batch > 0 {
		switch c := b.NextCall(w.now); {
		case c == nil:
			s.endWorker(b)
		case w.limits():
			c.Limit(w.now.Add(w.random(50 * time.Millisecond)))
			s.endWorker(b)
		default:
			s.callBatch(b, c)
		}
		return
	}
	e := b.Next(w.now)
	if e == nil {
		s.endWorker(b)
		return
	}
	if w.limits() {
		b.Limit(e, w.now.Add(w.random(50*time.Millisecond)))
		s.endWorker(b)
		return
	}
	w.begin(s, b, e)
	s.during(w.handling(s), func() {
		w.over(s, b, e.Seq)
		r := e.Of.Target.(*target).call()
		if r.Class != errclass.ClassDone {
			// it waits for its target
		} else if w.failing[e.Seq] >= e.Attempt {
			r = errclass.Result{Class: errclass.ClassFailed, Text: "failed"}
		} else if w.mode.Transactional {
			s.effects = append(s.effects, e.Seq)
		} else {
			w.effect(s, e.Seq)
		}
		b.Stopping = s.p.stopping
		b.Finish(w.now, e, r)
		s.worker(b)
	})
}

// during does something when a handler has taken its time, unless the process is gone by then.
func (s *shard) during(d time.Duration, do func()) {
	s.p.w.after(d, func() {
		switch {
		case s.p.gone:
		case s.p.frozen:
			s.p.held = append(s.p.held, do)
		default:
			do()
		}
	})
}

func (s *shard) endWorker(b *core.Batch) {
	if s.workers--; s.workers == 0 && s.batch == b {
		s.later(0, core.Handled{Batch: b})
	}
}

// limits is true if a rate does not allow an attempt now.
func (w *world) limits() bool { return w.rated && w.IntN(5) == 0 }

// handling is how long a handler takes.
func (w *world) handling(s *shard) time.Duration {
	if f, is := w.faults.Draw(simulation.Slow); is {
		d := f.UpTo(3 * leaseDuration)
		if f.Pick1(3) == 0 { // it hangs
			d = max(w.began.Add(w.result.Busy).Sub(w.now), 0)
		}
		w.note(s.name(), "FAULT: this handler takes "+d.String())
		return d
	}
	return w.random(3 * time.Millisecond)
}

// callBatch makes the calls of c, whose handler gets several events.
func (s *shard) callBatch(b *core.Batch, c *core.Call) {
	w := s.p.w
	if len(c.Entries()) > 1 && w.IntN(10) == 0 { // the next one cannot be decoded
		c.Cut(1 + w.IntN(len(c.Entries())-1))
	}
	for _, e := range c.Entries() {
		w.begin(s, b, e)
	}
	given := slices.Clone(c.Entries())
	s.during(w.handling(s), func() {
		for _, e := range given {
			w.over(s, b, e.Seq)
		}
		results, whole := s.callHandler(c.Entries())
		b.Stopping = s.p.stopping
		if c.Finish(w.now, results, whole) {
			s.callBatch(b, c)
		} else {
			s.worker(b)
		}
	})
}

// callHandler is the handler of batches. It either fails as a whole at the first event that fails, or names all that
// fail and those behind them.
func (s *shard) callHandler(entries []*core.Entry) (results []errclass.Result, whole bool) {
	w := s.p.w
	results = make([]errclass.Result, len(entries))
	all := func(r errclass.Result) ([]errclass.Result, bool) {
		for i := range results {
			results[i] = r
		}
		return results, true
	}
	if r := entries[0].Of.Target.(*target).call(); r.Class != errclass.ClassDone {
		return all(r)
	}
	failed := errclass.Result{Class: errclass.ClassFailed, Text: "failed"}
	names, bad := w.IntN(2) == 0, make(map[string]bool)
	var done []int64
	for i, e := range entries {
		if bad[e.Key] || w.failing[e.Seq] >= e.Attempt {
			if !names {
				if !w.mode.Transactional {
					s.takeEffect(done)
				}
				if len(entries) == 1 {
					w.giveUp(e)
				}
				return all(failed)
			}
			results[i], bad[e.Key] = failed, true
			w.giveUp(e)
			continue
		}
		done = append(done, e.Seq)
	}
	s.takeEffect(done)
	return results, false
}

// giveUp notes that an event is dead if it fails now for the last time.
func (w *world) giveUp(e *core.Entry) {
	if e.Attempt >= w.mode.MaxAttempts {
		w.failing[e.Seq] = w.mode.MaxAttempts
	}
}

// takeEffect notes what a handler has done.
func (s *shard) takeEffect(seqs []int64) {
	for _, seq := range seqs {
		if s.p.w.mode.Transactional {
			s.effects = append(s.effects, seq)
		} else {
			s.p.w.effect(s, seq)
		}
	}
}

// knowing returns another process that lives and knows the version of an event.
func (w *world) knowing(by *process, e *core.Entry) (id uuid.NullUUID) {
	for _, p := range w.procs {
		if p != by && !p.gone && !p.stopping && p.topics[0].Version >= e.Version {
			return uuid.NullUUID{UUID: p.id, Valid: true}
		}
	}
	return id
}

// renew renews a lease.
func (s *shard) renew(cmd core.Renew) {
	w, sent, lease := s.p.w, s.p.w.now, cmd.Lease
	s.renewing = lease
	told := false
	tell := func(d time.Duration, in core.Event) {
		w.after(d, func() {
			if !told {
				told, s.renewing = true, nil
				s.step(in)
			}
		})
	}
	if _, is := w.faults.Draw(simulation.Locked); is {
		w.excused = true
		tell(w.random(leaseDuration/5), core.Renewed{Lease: lease, Failed: true})
		return
	}
	tell(cmd.Until.Sub(sent), core.Renewed{Lease: lease, Failed: true})
	s.send("renewal", func() core.Event {
		if w.lacks("renewal") {
			return core.Renewed{Lease: lease, Sent: sent}
		}
		mine := w.holds(s.number, s.p.id, lease.No, "")
		w.flushIf(mine)
		if !w.renew(s.number, s.p.id, lease.No, w.db()) {
			return core.Renewed{Lease: lease, Lost: true}
		}
		if !mine {
			w.fail("I5", "a lease of shard %d that is over is renewed", s.number)
		}
		return core.Renewed{Lease: lease, Sent: sent}
	}, func(bool) core.Event { return core.Renewed{Lease: lease, Failed: true} }, tell)
}
