package simtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/testing/simulation"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// proc is a process with one core.
type proc struct {
	sim  *sim
	name string
	core *core.Core
	cfg  core.Config

	frozen, stopping, cancelled, databaseOver, crashed, ended bool
	listed, watches, awaits                                   bool
	began                                                     time.Time
	held                                                      []core.Event
	returns                                                   []func() // of handlers and calls while it was frozen
	timer                                                     int
	request                                                   int // the latest of the doorbell
	asleep                                                    bool
	calls                                                     map[string]bool // of publishers, by destination
	running                                                   map[*core.Task]bool
	busy                                                      int    // workers
	waiting                                                   []call // for one of running to return
	passes                                                    int
	reading, renewing                                         bool
	doubtful                                                  bool // something has gone wrong that leaves leases behind

	id        uuid.UUID
	rnd       *rand.Rand
	version   int       // the newest of events that it knows
	faultAt   time.Time // until when a fault of it may explain what becomes of its leases
	exhausted time.Time // until when its pool has no connection
	inFlight  map[*Row]*core.Task
	sent      []*statement // without an answer
}

// chance is true in one of n cases; never while it is calm.
func (p *proc) chance(n int) bool { return !p.sim.calm && p.rnd.IntN(n) == 0 }

// upTo returns a random duration, which is nearly always short.
func (p *proc) upTo(d time.Duration) time.Duration { return upTo(p.rnd, d) }

// call is what a worker has to do: a task, or the tasks of a batch.
type call struct {
	tasks []*core.Task
	batch *core.RunBatch
}

// held is what the shell knows of a task.
type held struct {
	*Row
	p        *proc
	lost     bool      // the core has given up its lease
	since    time.Time // of the claim
	claimNo  int
	began    bool // given to a handler or publisher
	over     bool // nothing runs
	settled  bool
	settling bool
	done     bool // the handler has returned success
	order    int
}

func of(t *core.Task) *held { return t.Data.(*held) }

// tell tells the core of e and does what it says.
func (p *proc) tell(e core.Event) {
	if p.crashed || p.ended {
		return
	}
	if p.frozen {
		p.held = append(p.held, e)
		return
	}
	p.sim.result.Steps++
	var recalled *core.Recalled
	for _, c := range slices.Clone(p.core.Step(p.sim.now, e)) {
		if p.crashed {
			return
		}
		if _, is := c.(core.Recall); is {
			recalled = p.recall()
			continue
		}
		p.obey(c)
	}
	if recalled != nil {
		p.sim.counts["recalled"] += len(recalled.Tasks) + len(recalled.Batches)
		p.tell(recalled)
	}
}

// recall takes back what waits.
func (p *proc) recall() *core.Recalled {
	e := &core.Recalled{}
	for _, c := range p.waiting {
		if c.batch != nil {
			e.Batches = append(e.Batches, c.batch)
		} else {
			e.Tasks = append(e.Tasks, c.tasks...)
		}
	}
	if p.waiting = nil; p.sim.lacks("recall") && len(e.Tasks) > 0 {
		p.waiting = []call{{tasks: e.Tasks[:1]}}
	}
	return e
}

func (p *proc) obey(c core.Command) {
	s := p.sim
	switch c := c.(type) {
	case core.Run:
		if s.lacks("run-once") && p.rnd.IntN(20) == 0 {
			p.queue(call{tasks: []*core.Task{c.Task}})
		}
		p.queue(call{tasks: []*core.Task{c.Task}})
	case *core.RunBatch:
		p.requireBatch(c)
		p.queue(call{c.Tasks, c})
	case *core.Send:
		p.publish(c)
	case *core.Route:
		p.route(c)
	case *core.Pass:
		p.pass(c)
	case *core.Renew:
		p.renew(c)
	case core.Lost:
		p.lose(c.Task)
	case core.Drop:
		h := of(c.Task)
		s.require(h.over && !h.settled, "core", "%s drops an event that is not over", p.name)
		h.settled = true
		p.landed(c.Task)
	case core.ReadPauses:
		s.require(!p.reading, "core", "%s reads pauses twice", p.name)
		p.reading = true
		p.readPauses()
	case core.Sweep:
		p.sweep()
	case core.AskBell:
		p.askBell(c)
	case core.Timer:
		p.timer++
		if n := p.timer; !c.At.IsZero() {
			s.require(c.At.After(s.now), "core", "%s wants a tick in the past", p.name)
			if s.lacks("timer") && p.rnd.IntN(10) == 0 {
				return
			}
			s.after(c.At.Sub(s.now), func() {
				if n == p.timer {
					p.tell(core.Tick{})
				}
			})
		}
	case *core.End:
		p.end(c)
	}
}

// landed notes that t is not in flight any more. The event may be so again.
func (p *proc) landed(t *core.Task) {
	if p.inFlight[of(t).Row] == t {
		delete(p.inFlight, of(t).Row)
	}
}

// lose tells a handler that the lease of its event is lost. It notices, or it does not.
func (p *proc) lose(t *core.Task) {
	s, h := p.sim, of(t)
	s.counts["lost"]++
	s.note(p.name, "gives up event "+h.name())
	if s.lacks("lost") {
		return
	}
	if h.lost = true; p.running[t] && h.Topic != "batched" && p.rnd.IntN(2) == 0 { // it notices
		s.after(p.upTo(time.Second), func() { p.returned(t, errclass.New(errclass.ClassFailed, "lease lost")) })
	}
}

// result returns what a handler or publisher makes of r.
func (p *proc) result(r *Row, name string) errclass.Result {
	s := p.sim
	if s.now.Before(s.away[name]) {
		broker := p.rnd.IntN(5) == 0
		return errclass.Result{Class: errclass.ClassUnavailable, Text: "away", Broker: broker}
	}
	if f, is := s.faults.Draw(simulation.Failure); is {
		s.note(p.name, "FAULT: the handler of event "+r.name()+" fails")
		switch f.Pick1(6) {
		case 0:
			return errclass.New(errclass.ClassRefused, "never")
		case 1:
			return errclass.New(errclass.ClassNotSent, "not sent")
		}
		return errclass.New(errclass.ClassFailed, "no")
	}
	return errclass.Result{}
}

// queue makes a call wait for a worker.
func (p *proc) queue(c call) {
	p.waiting = append(p.waiting, c)
	p.sim.require(len(p.waiting)+p.busy <= p.cfg.Concurrency+p.cfg.Ahead || p.sim.lacks("run-once"), "core", "%s has too many calls for its workers", p.name)
	p.work()
}

// requireBatch checks which events share a batch.
func (p *proc) requireBatch(c *core.RunBatch) {
	s, size := p.sim, 0
	for _, t := range p.cfg.Targets {
		size = max(size, t.Batch.Size)
	}
	order := 0
	for _, t := range c.Tasks {
		h := of(t)
		s.require(h.Topic == "batched", "core", "%s gives a batch of %s", p.name, h.Topic)
		s.require(t.Reclaimed == c.Tasks[0].Reclaimed, "core", "%s mixes events that may have killed a process with others", p.name)
		s.require(h.order > order, "core", "%s orders a batch otherwise than it has claimed it", p.name)
		order = h.order
		if limit := max(1, size>>(t.Attempt-1)); t.Reclaimed && len(c.Tasks) > 1 {
			s.require(len(c.Tasks) <= limit && t.Attempt < t.MaxAttempts, "core", "%s has a batch of %d, on attempt %d", p.name,
				len(c.Tasks), t.Attempt)
		}
	}
	s.require(len(c.Tasks) > 0 && len(c.Tasks) <= size, "core", "%s has a batch of %d of %d", p.name, len(c.Tasks), size)
	s.counts["batches"]++
}

// work gives what waits to free workers. One that begins too late reports that.
func (p *proc) work() {
	for p.busy < p.cfg.Concurrency && len(p.waiting) > 0 {
		c := p.waiting[0]
		p.waiting = p.waiting[1:]
		if c.batch != nil {
			p.runBatch(c.batch)
			continue
		}
		t := c.tasks[0]
		if p.sim.now.Before(t.StartBy) || p.sim.lacks("start-by") {
			p.run(t)
			continue
		}
		of(t).over = true
		if t.Result = errclass.New(errclass.ClassNotSent, "late"); t.StartWithin.IsZero() || p.sim.now.Before(t.StartWithin) {
			t.Late = true
		} else {
			t.Ended = true
		}
		p.sim.after(0, func() { p.tell(&core.Reported{Tasks: []*core.Task{t}}) })
	}
}

// run runs the handler of t.
func (p *proc) run(t *core.Task) {
	s, h := p.sim, of(t)
	p.begin(t)
	p.busy++
	s.require(p.busy <= p.cfg.Concurrency, "core", "%s runs %d handlers", p.name, p.busy)
	took := p.upTo(200 * time.Millisecond)
	if f, is := s.faults.Draw(simulation.Slow); is {
		took = f.UpTo(2 * lease)
		s.note(p.name, "FAULT: the handler of event "+h.name()+" takes "+took.String())
	}
	s.after(took, func() { p.returned(t, p.result(h.Row, h.Topic)) })
}

// begin notes that a handler begins with t.
func (p *proc) begin(t *core.Task) {
	s, h := p.sim, of(t)
	if s.lacks("run-once") && h.began {
		h.over = false
	}
	s.require(!h.began && !h.over && !h.settled || s.lacks("run-once"), "core", "%s starts event %s again", p.name, h.name())
	s.require(!p.stopping, "core", "%s starts an event after its end", p.name)
	p.requireStart(t)
	h.began = true
	p.running[t] = true
	t.Began, t.Tried = s.now, true
}

// requireStart checks that an event that begins is this process's, and that nobody else has it.
func (p *proc) requireStart(t *core.Task) {
	s, h := p.sim, of(t)
	r := h.Row
	s.note(p.name, "starts event "+r.name())
	s.require(t.StartWithin.IsZero() || s.now.Before(t.StartWithin), "core", "event %s begins later than its rate allows", r.name())
	s.require(r.committed, "I2", "event %s is started, and its transaction is not committed", r.name())
	s.require(!r.lost, "I3", "event %s is started, and its row does not exist", r.name())
	stepped := s.steppedSince(h)
	p.requireRate(r)
	mine := r.ClaimNo == h.claimNo && r.LockedBy == p.id && r.leased() && r.LockedUntil.After(s.db())
	s.require(mine || stepped || h.lost, "I4", "%s starts event %s without a lease", p.name, r.name())
	for _, o := range r.begun {
		others := o != h && !o.over && !o.lost && !o.p.frozen && !o.p.crashed && !o.p.ended
		s.require(!others || stepped || s.steppedSince(o), "I4", "%s starts event %s while %s still handles it", p.name, r.name(), o.p.name)
	}
	r.begun = append(slices.DeleteFunc(r.begun, func(o *held) bool { return o.over || o.p.crashed }), h)
	if mine {
		r.seen++
		s.require(r.seen <= r.Attempts, "I6", "event %s is started %d times in %d attempts", r.name(), r.seen, r.Attempts)
	}
	if r.handled > 0 {
		s.require(r.excused, "I9", "event %s is started again, and nothing explains it", r.name())
	}
	if r.poison {
		s.note(p.name, "FAULT: event "+r.name()+" will kill it")
		s.after(p.upTo(100*time.Millisecond), func() {
			if !p.crashed && !p.ended {
				s.crash(p)
			}
		})
	}
}

// handle notes that an event was handled: its effect, behind an inbox, and its result.
func (p *proc) handle(h *held) {
	s := p.sim
	h.done = true
	h.handled++
	s.note(p.name, "has handled event "+h.name())
	times := 1
	if _, is := s.faults.Draw(simulation.DoubledSend); is {
		times = 2
	}
	for range times {
		if !s.inbox[h.ID] || s.lacks("inbox") {
			s.inbox[h.ID] = true
			h.effects++
		}
	}
	s.require(h.effects == 1, "I10", "event %s has had its effect %d times", h.name(), h.effects)
}

// runBatch runs the handler of a batch. Its events have their results in one or several parts.
func (p *proc) runBatch(b *core.RunBatch) {
	s := p.sim
	p.busy++
	var late []*core.Task
	var left []*core.Task
	for _, t := range b.Tasks {
		if s.now.Before(t.StartBy) || s.lacks("start-by") {
			p.begin(t)
			left = append(left, t)
			continue
		}
		of(t).over = true
		t.Late, t.Result = true, errclass.New(errclass.ClassNotSent, "late")
		late = append(late, t)
	}
	if len(left) == 0 {
		p.busy--
	}
	if len(late) > 0 {
		s.after(0, func() { p.tell(&core.BatchReported{Batch: b, Tasks: late}) })
	}
	if len(left) > 0 {
		p.callBatch(b, left)
	}
}

// callBatch lets some of left have their results after a while, and then the others.
func (p *proc) callBatch(b *core.RunBatch, left []*core.Task) {
	s := p.sim
	s.after(p.upTo(200*time.Millisecond), func() { p.returnedBatch(b, left) })
}

func (p *proc) returnedBatch(b *core.RunBatch, left []*core.Task) {
	if p.crashed {
		return
	}
	if p.frozen {
		p.returns = append(p.returns, func() { p.returnedBatch(b, left) })
		return
	}
	n := len(left)
	if p.chance(3) {
		n = 1 + p.rnd.IntN(n)
	}
	together := p.result(of(left[0]).Row, "batched")
	for _, t := range left[:n] {
		h := of(t)
		h.over = true
		delete(p.running, t)
		if t.Result = together; together.Class == errclass.ClassFailed && p.chance(3) {
			t.Shared = true
		} else if p.chance(2) {
			t.Result = p.result(h.Row, "batched")
		}
		if t.Result.Class == errclass.ClassDone {
			p.handle(h)
		}
	}
	if n == len(left) {
		p.busy--
	} else {
		p.callBatch(b, left[n:])
	}
	p.work()
	p.tell(&core.BatchReported{Batch: b, Tasks: left[:n:n]})
}

// returned ends the handler of t.
func (p *proc) returned(t *core.Task, r errclass.Result) {
	s, h := p.sim, of(t)
	if h.over || p.crashed {
		return
	}
	if p.frozen {
		p.returns = append(p.returns, func() { p.returned(t, r) })
		return
	}
	h.over = true
	delete(p.running, t)
	p.busy--
	if t.Result = r; s.lacks("result") && r.Class == errclass.ClassFailed {
		t.Result = errclass.Result{}
	} else if r.Class == errclass.ClassDone {
		p.handle(h)
	}
	p.work()
	p.tell(&core.Reported{Tasks: []*core.Task{t}})
}

// publish calls a publisher.
func (p *proc) publish(c *core.Send) {
	s := p.sim
	name := c.To.Rest.Name
	if c.To.ByEvent {
		name = c.Destination
	}
	s.require(!p.calls[name], "core", "%s calls %s twice at a time", p.name, name)
	s.require(!p.stopping, "core", "%s sends after its end", p.name)
	p.calls[name] = true
	order := 0
	for _, t := range c.Tasks {
		h := of(t)
		s.require(!h.began && !h.over && !h.settled, "core", "%s sends an event again", p.name)
		s.require(h.order > order, "core", "%s sends events in another order than it has claimed them", p.name)
		order = h.order
		p.requireStart(t)
		h.began = true
	}
	took := p.upTo(100 * time.Millisecond)
	if p.chance(10) && !(s.bells && c.To.ByEvent) { // what waits for a destination that has stalled is found by a poll
		took = p.upTo(3 * time.Second)
	}
	var back func()
	back = func() {
		if p.crashed {
			return
		}
		if p.frozen {
			p.returns = append(p.returns, back)
			return
		}
		p.calls[name] = false
		sent := &core.Sent{Send: c}
		var unfit []*core.Task
		for _, t := range c.Tasks {
			h := of(t)
			h.over = true
			if t.Result = p.result(h.Row, name); t.Result.Class == errclass.ClassRefused && !c.To.ByEvent {
				unfit = append(unfit, t)
				continue
			}
			if t.Tried = true; t.Result.Class == errclass.ClassDone {
				p.handle(h)
			}
			sent.Tasks = append(sent.Tasks, t)
		}
		if len(unfit) > 0 {
			p.tell(&core.Reported{Tasks: unfit})
		}
		p.tell(sent)
	}
	s.after(took, back)
}

// route finds the destinations of events.
func (p *proc) route(c *core.Route) {
	s := p.sim
	s.after(p.upTo(50*time.Millisecond), func() {
		e := &core.Routed{Route: c}
		var unfit []*core.Task
		for _, t := range c.Tasks {
			h := of(t)
			if p.chance(100) && !s.bells {
				h.began, h.over, t.Result = true, true, errclass.New(errclass.ClassRefused, "no destination")
				unfit = append(unfit, t)
				continue
			}
			i := slices.IndexFunc(e.Destinations, func(d core.Destined) bool { return d.Destination == h.to })
			if i < 0 {
				i = len(e.Destinations)
				e.Destinations = append(e.Destinations, core.Destined{Destination: h.to})
			}
			e.Destinations[i].Tasks = append(e.Destinations[i].Tasks, t)
		}
		if len(unfit) > 0 {
			p.tell(&core.Reported{Tasks: unfit})
		}
		p.tell(e)
	})
}

// readPauses reads what is paused.
func (p *proc) readPauses() {
	s, st := p.sim, p.send("reading of pauses")
	over := false
	answer := func(read *core.Pauses, err error) {
		if !over {
			over, p.reading = true, false
			p.answered(st)
			p.tell(&core.PausesRead{Pauses: read, Err: err})
		}
	}
	st.fail = func() { answer(nil, errDatabase) }
	s.after(st.wait+p.upTo(50*time.Millisecond), func() {
		read, arrived := s.pauses, st.arrives()
		s.after(p.upTo(20*time.Millisecond), func() {
			if arrived && st.commits() && st.answers() {
				answer(read, nil)
			} else {
				st.fail()
			}
		})
	})
}

// sweep makes dead letters of what no claim takes, at the end of a drain.
func (p *proc) sweep() {
	s, st := p.sim, p.send("sweep")
	s.after(st.wait+p.upTo(10*time.Millisecond), func() {
		if !st.arrives() || !st.commits() {
			p.tell(core.Swept{Err: errDatabase})
			return
		}
		s.sweepAs(p)
		if st.answers() {
			p.tell(core.Swept{})
		} else {
			p.tell(core.Swept{Err: errDatabase})
		}
	})
}

// askBell asks the doorbell, which is refused while a transaction is open that has enqueued without a ring.
func (p *proc) askBell(c core.AskBell) {
	s := p.sim
	s.require(c.Request == p.request+1, "core", "%s asks the doorbell out of order", p.name)
	p.request, p.asleep = c.Request, c.Asleep
	s.after(p.upTo(5*time.Millisecond), func() {
		if p.request != c.Request || p.crashed || p.ended || p.stopping {
			return
		}
		if !c.Asleep {
			if p.awaits = false; p.watches {
				p.watches = false
				s.ring(false)
			}
			return
		}
		others := slices.ContainsFunc(s.procs, func(o *proc) bool { return o.watches })
		if !others && s.open > 0 {
			answer := core.Answered{Request: c.Request, Bell: sleep.Busy}
			if slices.ContainsFunc(s.procs, func(o *proc) bool { return o.awaits }) {
				answer.Bell = sleep.Awaits
			} else {
				p.awaits = p.rnd.IntN(2) == 0
			}
			p.tell(answer)
			return
		}
		if !others {
			p.watches = true
		}
		p.tell(core.Answered{Request: c.Request, Bell: sleep.Watches})
	})
}

// renew renews leases.
func (p *proc) renew(c *core.Renew) {
	s, st := p.sim, p.send("renewal")
	s.require(!p.renewing, "core", "%s renews twice", p.name)
	p.renewing = true
	over := false
	answer := func(e *core.Renewed) {
		if !over {
			over, p.renewing = true, false
			p.answered(st)
			p.tell(e)
		}
	}
	st.fail = func() { answer(&core.Renewed{Renew: c}) }
	s.after(c.Until.Sub(s.now), func() { answer(&core.Renewed{Renew: c}) }) // it waits no longer
	s.after(st.wait+st.lag()+p.upTo(500*time.Millisecond), func() {
		if !st.arrives() || !st.commits() {
			answer(&core.Renewed{Renew: c})
			return
		}
		done := &core.Renewed{Renew: c}
		for _, t := range c.Tasks {
			done.Outcomes = append(done.Outcomes, p.extend(t))
		}
		if !st.answers() {
			done.Outcomes = nil
		}
		answer(done)
	})
}

// extend renews the lease of t.
func (p *proc) extend(t *core.Task) core.RenewalOutcome {
	s, h := p.sim, of(t)
	f, until := Fence{p.id, h.claimNo}, h.LockedUntil
	if s.lacks("renewal") {
		return core.Prolonged
	}
	if _, is := s.faults.Draw(simulation.Locked); is || h.busy != nil {
		p.mark(s.now)
		return core.Kept
	}
	if !s.Extend(h.Row, f, s.db(), p.cfg.LeaseDuration) {
		return core.Gone
	}
	s.flush()
	s.require(h.ClaimNo == f.ClaimNo && h.LockedBy == f.Worker, "I5", "a claim of event %s that is over renews it", h.name())
	s.note(p.name, fmt.Sprintf("renews event %s, %s before its end", h.name(), until.Sub(s.db())))
	return core.Prolonged
}

// end checks that p leaves nothing behind.
func (p *proc) end(e *core.End) {
	s := p.sim
	p.ended = true
	if p.cfg.Drain {
		s.counts["drains"]++
	}
	s.note(p.name, "ends")
	s.require(p.stopping || p.cfg.Drain, "core", "%s ends by itself", p.name)
	s.require(e.Unsettled == 0 || p.databaseOver, "core", "%s leaves %d events unsettled", p.name, e.Unsettled)
	s.require(len(e.Running) == 0 || p.stopping, "core", "%s leaves handlers running", p.name)
	if e.Unsettled == 0 && len(e.Running) == 0 && e.Err == nil && !p.doubtful && p.faultAt.IsZero() && s.faultAt.IsZero() {
		p.requireReleased()
	}
	if s.bells { // what it has released others find by a poll
		s.ring(false)
	}
	for _, r := range s.rows {
		r.abandoned = r.abandoned || s.bells && r.holder == p && r.leased()
	}
	if e.Drained == core.DrainDone && e.Err == nil {
		p.requireDrained()
	}
	if !p.stopping {
		s.remove(p)
	}
}

// requireReleased checks that p has no lease.
func (p *proc) requireReleased() {
	s := p.sim
	for _, r := range s.rows {
		leased := r.LockedBy == p.id && r.leased() && !r.LockedUntil.Before(s.db())
		s.require(!leased, "I11", "%s leaves event %s leased", p.name, r.name())
	}
}

// requireDrained checks that a drain has taken everything that was due when it began, and that nothing has kept it from
// taking.
func (p *proc) requireDrained() {
	s := p.sim
	if len(core.Resting(p.cfg.Targets)) > 0 || s.pauses.Any() || s.paused.After(p.began) || len(s.away) > 0 || !s.stepped.IsZero() {
		return
	}
	for _, r := range s.rows {
		if r.Topic == limitedTopic || r.Version > p.version {
			continue // a limit may have been reached
		}
		untouched := r.ClaimNo == 0 && r.busy == nil && !r.changed.After(p.began)
		s.require(!untouched || r.Due.After(p.began.Add(-2*time.Second)), "liveness", "%s has ended, and event %s of %s is due",
			p.name, r.name(), r.Topic)
	}
}
