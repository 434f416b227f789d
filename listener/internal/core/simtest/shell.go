package coresim

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// later tells the core something later, unless it is gone by then.
func (s *shard) later(d time.Duration, in core.Event) {
	s.p.w.after(d, func() { s.step(in) })
}

// step tells the core what happened, and does what it says.
func (s *shard) step(in core.Event) {
	if s.p.gone || s.core.Over() || s.p.w.err != nil {
		return
	}
	if _, is := in.(core.Renewed); is {
		s.renewing = nil
	}
	commands := s.core.Step(s.p.w.now, in)
	commands = append([]core.Command(nil), commands...)
	s.p.w.note(step{s.p.w.now, s.p.id, s.number, in, s.core.State(), commands})
	for _, cmd := range commands {
		s.do(cmd)
	}
	if s.p.w.chance(50) { // a tick may come at any time
		s.later(s.p.w.random(5*time.Millisecond), core.Tick{})
	}
	if s.core.Over() {
		if err := s.core.Err(); err != nil && !s.p.w.storm && !s.p.stopping {
			s.p.w.fail("shard %d has stopped: %w", s.number, err)
		}
		s.onOver()
	}
}

// step is one step of a core, to be told when something goes wrong.
type step struct {
	at       time.Time
	process  uuid.UUID
	number   int
	in       core.Event
	state    core.State
	commands []core.Command
}

func (s step) String() string {
	text := fmt.Sprintf("%s %x/%d %T -> %v", s.at.Format("04:05.000"), s.process[:2], s.number, s.in, s.state)
	for _, cmd := range s.commands {
		text += fmt.Sprintf(" %T", cmd)
	}
	return text
}

// told is how many of the latest steps are told.
const told = 60

func (w *world) note(s step) {
	if w.trace = append(w.trace, s); len(w.trace) > 10*told {
		w.trace = append(w.trace[:0], w.trace[len(w.trace)-told:]...)
	}
}

var errDown = errors.New("the database does not answer")

// call runs a statement: at once or late, and the answer may be lost.
func (s *shard) call(run func() core.Event) {
	w := s.p.w
	there, back := w.random(2*time.Millisecond), w.random(time.Millisecond)
	switch {
	case s.p.cut:
		s.later(0, core.Failed{Err: errDown, Final: true})
	case w.chance(40): // the request is lost
		s.later(there+back, core.Failed{Err: errDown})
	case w.chance(40): // the answer is lost
		w.after(there, func() { run() })
		s.later(there+back, core.Failed{Err: errDown})
	case w.chance(80): // it arrives long after its sender has given up
		s.later(there+back, core.Failed{Err: errDown})
		w.after(w.random(leaseDuration), func() { run() })
	default:
		if w.chance(100) {
			there += w.random(leaseDuration)
		}
		w.after(there, func() {
			answer := run()
			s.later(back, answer)
		})
	}
}

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
		s.renew(cmd.Lease)
	case core.FindProcess:
		s.later(w.random(time.Millisecond), core.ProcessFound{Worker: w.knowing(s.p, cmd.Entry)})
	case core.TellNewer:
		s.p.newerAt = w.now
	case core.WakeOthers:
		w.wakeAll()
	case core.RequestShard:
		if s.number < len(w.shards) && w.IntN(4) == 0 {
			w.shards[s.number].wantedBy = s.p.id
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
		s.p.w.fail("a lease of shard %d is ended while it is renewed", s.number)
	}
	s.call(func() core.Event { return s.answer(cmd) })
}

// answer does in the tables what the statement of a command does, and returns its answer.
func (s *shard) answer(cmd core.Command) core.Event {
	w := s.p.w
	switch cmd := cmd.(type) {
	case core.Check:
		row, ok := w.wait(s.number, s.p.id, w.now)
		return core.Checked{Gone: !ok, Wait: row, NewerAt: s.p.newerAt}
	case core.Fill:
		return w.fill(s.number, w.now)
	case core.RoundTrip:
		return s.roundTrip(cmd)
	case core.AskLease:
		return w.leaseState(s.number)
	case core.ReadFirst:
		lease := cmd.Lease
		if lease.Events, lease.Scanned = nil, 0; w.holds(s.number, s.p.id, lease.No) {
			w.read(s.number, lease, s.p.topics)
		}
		return core.Read{}
	case core.TakeParked:
		return core.ParkedTaken{Events: w.takeParked(s.number, s.p, cmd, w.now)}
	case core.Try:
		return w.try(s.number, s.p, cmd.Lease, (w.mode.Batch+1)/2)
	case core.Charge:
		ours := w.holds(s.number, s.p.id, cmd.Lease.No)
		if ours {
			c := w.shards[s.number]
			c.lastSeq, c.retryCount = cmd.Entry.Seq-1, cmd.Entry.Attempt
		}
		return core.Charged{Ours: ours}
	case core.Reshard:
		return core.Resharded{Stepped: w.reshard()}
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
		cmd.Batch.LoseLease()
	case core.Abandon:
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
			w.fail("nobody was told of the end of a lease of shard %d", s.number)
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
			w.fail("shard %d counts the end of a lease that was lost", s.number)
		case !cmd.Ours && ended && s.number < len(w.shards) && w.shards[s.number].leaseID == cmd.End.Lease.ID:
			w.fail("shard %d takes a lease for lost that it has ended", s.number)
		}
	}
}

// prefetch reads a batch ahead.
func (s *shard) prefetch(p *core.NextBatch) {
	w := s.p.w
	w.after(w.random(2*time.Millisecond), func() {
		if p.Failed = w.chance(20); !p.Failed {
			w.readNext(s.number, s.p, p, w.mode.BatchSize)
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
func (s *shard) roundTrip(cmd core.RoundTrip) core.Event {
	w := s.p.w
	var answer core.RoundTripDone
	if cmd.End != nil {
		w.checkEnd(s.number, s.p.id, cmd.End, nil)
		answer.Ours = w.advance(s.number, s.p.id, cmd.End, w.now)
	}
	if t := cmd.Take; t != nil {
		answer.Lease = &core.Lease{
			ID: t.ID, BatchSize: t.BatchSize, ScanSize: t.ScanSize, Deadline: w.now.Add(leaseDuration - 50*time.Millisecond),
		}
		w.take(s.number, s.p.id, t, w.now, answer.Lease)
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
		w.fail("a lease of shard %d is ended while it is renewed", s.number)
	}
	for _, seq := range done {
		if w.poisonTx.has(seq) {
			s.later(w.random(time.Millisecond), core.CommitFailed{
				Err: errDown, Alive: true, Result: errclass.Result{Class: errclass.ClassFailed, Text: "poison"},
			})
			return
		}
	}
	run := func() (moved bool) {
		w.checkEnd(s.number, s.p.id, a, done)
		if moved = w.advance(s.number, s.p.id, a, w.now); moved {
			for _, seq := range done {
				w.effect(seq)
			}
		}
		return moved
	}
	switch {
	case w.chance(30):
		s.later(w.random(time.Millisecond), core.CommitFailed{Err: errDown})
	case w.chance(30):
		w.after(w.random(time.Millisecond), func() { run() })
		s.later(2*time.Millisecond, core.CommitFailed{Err: errDown})
	default:
		w.after(w.random(time.Millisecond), func() { s.later(0, core.Committed{Ours: run()}) })
	}
}

// handle runs the handlers of a batch.
func (s *shard) handle(b *core.Batch) {
	s.batch, s.effects, s.workers = b, nil, min(s.p.w.mode.Concurrency, b.Len())
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
	w.after(w.handling(), func() {
		if s.p.gone {
			return
		}
		r := e.Of.Target.(*target).call()
		if r.Class != errclass.ClassDone {
			// it waits for its target
		} else if w.failing[e.Seq] >= e.Attempt {
			r = errclass.Result{Class: errclass.ClassFailed, Text: "failed"}
		} else if w.mode.Transactional {
			s.effects = append(s.effects, e.Seq)
		} else {
			w.effect(e.Seq)
		}
		b.Stopping = s.p.stopping
		b.Finish(w.now, e, r)
		s.worker(b)
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
func (w *world) handling() time.Duration {
	switch {
	case w.chance(200):
		return w.random(3 * leaseDuration)
	case w.chance(500):
		return max(w.began.Add(stormy).Sub(w.now), 0) // it hangs
	}
	return w.random(3 * time.Millisecond)
}

// callBatch makes the calls of c, whose handler gets several events.
func (s *shard) callBatch(b *core.Batch, c *core.Call) {
	w := s.p.w
	if len(c.Entries()) > 1 && w.IntN(10) == 0 { // the next one cannot be decoded
		c.Cut(1 + w.IntN(len(c.Entries())-1))
	}
	w.after(w.handling(), func() {
		if s.p.gone {
			return
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
			s.p.w.effect(seq)
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
func (s *shard) renew(lease *core.Lease) {
	w, sent := s.p.w, s.p.w.now
	s.renewing = lease
	if w.chance(4) {
		s.later(w.random(leaseDuration/5), core.Renewed{Lease: lease, Failed: true})
		return
	}
	w.after(w.random(time.Millisecond), func() {
		if !w.holds(s.number, s.p.id, lease.No) {
			s.later(0, core.Renewed{Lease: lease, Lost: true})
			return
		}
		w.shards[s.number].leaseUntil = w.now.Add(leaseDuration)
		s.later(0, core.Renewed{Lease: lease, Sent: sent})
	})
}
