package coresim

import (
	"fmt"
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// proc is a process with one core.
type proc struct {
	sim  *sim
	name string
	core *core.Core
	cfg  core.Config

	frozen, stopping, cancelled, databaseOver, crashed, ended bool
	listed, watches                                           bool
	began                                                     time.Time
	held                                                      []core.Event
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
}

// call is what a worker has to do: a task, or the tasks of a batch.
type call struct {
	tasks []*core.Task
	batch *core.RunBatch
}

// held is what the shell knows of a task.
type held struct {
	*row
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
	p.sim.stats.Steps++
	if p.sim.trace != nil {
		p.sim.trace("%12s %s: %T%+v", p.sim.now.Sub(start), p.name, e, brief(e))
	}
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
		p.sim.stats.Recalled += len(recalled.Tasks) + len(recalled.Batches)
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
	p.waiting = nil
	return e
}

// brief is what a trace shows of an event.
func brief(e core.Event) string {
	switch e := e.(type) {
	case *core.PassDone:
		return fmt.Sprintf(" claimed %d of %d, open %d, err %v", len(e.Claimed), claimSize(e.Pass), len(e.Open), e.Err)
	case core.Answered:
		return fmt.Sprintf(" %v", e)
	case *core.PausesRead:
		return fmt.Sprintf(" %+v %v", e.Pauses, e.Err)
	}
	return ""
}

func claimSize(c *core.Pass) int {
	if c.Claim == nil {
		return 0
	}
	return c.Claim.Size
}

func (p *proc) obey(c core.Command) {
	s := p.sim
	if s.trace != nil {
		s.trace("%12s %s:     -> %T", s.now.Sub(start), p.name, c)
	}
	switch c := c.(type) {
	case core.Run:
		p.queue(call{tasks: []*core.Task{c.Task}})
	case *core.RunBatch:
		p.requireBatch(c)
		p.queue(call{c.Tasks, c})
	case *core.Send:
		p.send(c)
	case *core.Route:
		p.route(c)
	case *core.Pass:
		p.pass(c)
	case *core.Renew:
		p.renew(c)
	case core.Lost:
		s.stats.Lost++
		if p.running[c.Task] && of(c.Task).topic != "batched" && s.rnd.IntN(2) == 0 { // it notices
			t := c.Task
			s.after(s.upTo(time.Second), func() { p.returned(t, errclass.New(errclass.ClassFailed, "lease lost")) })
		}
	case core.Drop:
		h := of(c.Task)
		s.require(h.over && !h.settled, "%s drops an event that is not over", p.name)
		h.settled = true
	case core.ReadPauses:
		s.require(!p.reading, "%s reads pauses twice", p.name)
		p.reading = true
		s.after(s.upTo(50*time.Millisecond), func() { p.readPauses() })
	case core.Sweep:
		s.after(s.upTo(10*time.Millisecond), func() { p.tell(core.Swept{}) })
	case core.AskBell:
		p.askBell(c)
	case core.Timer:
		p.timer++
		if n := p.timer; !c.At.IsZero() {
			s.require(c.At.After(s.now), "%s wants a tick in the past", p.name)
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

// result returns what a handler or publisher makes of r.
func (p *proc) result(r *row, name string) errclass.Result {
	s := p.sim
	switch {
	case s.now.Before(s.away[name]):
		broker := s.rnd.IntN(5) == 0
		return errclass.Result{Class: errclass.ClassUnavailable, Text: "away", Broker: broker}
	case s.bells:
	case s.chance(12):
		return errclass.New(errclass.ClassFailed, "no")
	case s.chance(50):
		return errclass.New(errclass.ClassRefused, "never")
	case s.chance(50):
		return errclass.New(errclass.ClassNotSent, "not sent")
	}
	return errclass.Result{}
}

// queue makes a call wait for a worker.
func (p *proc) queue(c call) {
	p.waiting = append(p.waiting, c)
	p.sim.require(len(p.waiting)+p.busy <= p.cfg.Concurrency+p.cfg.Ahead, "%s has too many calls for its workers", p.name)
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
		s.require(h.topic == "batched", "%s gives a batch of %s", p.name, h.topic)
		s.require(t.Reclaimed == c.Tasks[0].Reclaimed, "%s mixes events that may have killed a process with others", p.name)
		s.require(h.order > order, "%s orders a batch otherwise than it has claimed it", p.name)
		order = h.order
		if limit := max(1, size>>(t.Attempt-1)); t.Reclaimed && len(c.Tasks) > 1 {
			s.require(len(c.Tasks) <= limit && t.Attempt < t.MaxAttempts, "%s has a batch of %d, on attempt %d", p.name,
				len(c.Tasks), t.Attempt)
		}
	}
	s.require(len(c.Tasks) > 0 && len(c.Tasks) <= size, "%s has a batch of %d of %d", p.name, len(c.Tasks), size)
	s.stats.Batches, s.stats.Batched = s.stats.Batches+1, s.stats.Batched+len(c.Tasks)
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
		if p.sim.now.Before(t.StartBy) {
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
	s.require(p.busy <= p.cfg.Concurrency, "%s runs %d handlers", p.name, p.busy)
	p.mayKill()
	took := s.upTo(200 * time.Millisecond)
	if h.topic == "slow" && s.chance(10) {
		took = s.upTo(15 * time.Second)
	}
	s.after(took, func() { p.returned(t, p.result(h.row, h.topic)) })
}

// begin notes that a handler begins with t.
func (p *proc) begin(t *core.Task) {
	s, h := p.sim, of(t)
	s.require(!h.began && !h.over && !h.settled, "%s starts an event again", p.name)
	s.require(!p.stopping, "%s starts an event after its end", p.name)
	s.requireStart(t)
	h.began = true
	p.running[t] = true
	t.Began, t.Tried = s.now, true
}

// mayKill crashes p soon, in few cases.
func (p *proc) mayKill() {
	s := p.sim
	if !s.bells && s.chance(300) {
		s.after(s.upTo(time.Second), func() {
			if !p.crashed && !p.ended {
				s.crash(p)
			}
		})
	}
}

// runBatch runs the handler of a batch. Its events have their results in one or several parts.
func (p *proc) runBatch(b *core.RunBatch) {
	s := p.sim
	p.busy++
	var late []*core.Task
	var left []*core.Task
	for _, t := range b.Tasks {
		if s.now.Before(t.StartBy) {
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
		p.mayKill()
		p.callBatch(b, left)
	}
}

// callBatch lets some of left have their results after a while, and then the others.
func (p *proc) callBatch(b *core.RunBatch, left []*core.Task) {
	s := p.sim
	s.after(s.upTo(200*time.Millisecond), func() { p.returnedBatch(b, left) })
}

func (p *proc) returnedBatch(b *core.RunBatch, left []*core.Task) {
	s := p.sim
	if p.crashed {
		return
	}
	if p.frozen {
		s.after(100*time.Millisecond, func() { p.returnedBatch(b, left) })
		return
	}
	n := len(left)
	if s.chance(3) {
		n = 1 + s.rnd.IntN(n)
	}
	together := p.result(of(left[0]).row, "batched")
	for _, t := range left[:n] {
		h := of(t)
		h.over = true
		delete(p.running, t)
		if t.Result = together; together.Class == errclass.ClassFailed && s.chance(3) {
			t.Shared = true
		} else if s.chance(2) {
			t.Result = p.result(h.row, "batched")
		}
		if t.Result.Class == errclass.ClassDone {
			h.done = true
			h.handled++
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
	h := of(t)
	if h.over || p.crashed {
		return
	}
	if p.frozen {
		p.sim.after(100*time.Millisecond, func() { p.returned(t, r) })
		return
	}
	h.over = true
	delete(p.running, t)
	p.busy--
	if t.Result = r; r.Class == errclass.ClassDone {
		h.done = true
		h.handled++
	}
	p.work()
	p.tell(&core.Reported{Tasks: []*core.Task{t}})
}

// send calls a publisher.
func (p *proc) send(c *core.Send) {
	s := p.sim
	name := c.To.Rest.Name
	if c.To.ByEvent {
		name = c.Destination
	}
	s.require(!p.calls[name], "%s calls %s twice at a time", p.name, name)
	s.require(!p.stopping, "%s sends after its end", p.name)
	p.calls[name] = true
	order := 0
	for _, t := range c.Tasks {
		h := of(t)
		s.require(!h.began && !h.over && !h.settled, "%s sends an event again", p.name)
		s.require(h.order > order, "%s sends events in another order than it has claimed them", p.name)
		h.began, order = true, h.order
	}
	took := s.upTo(100 * time.Millisecond)
	if s.chance(10) && !(s.bells && c.To.ByEvent) { // what waits for a destination that has stalled is found by a poll
		took = s.upTo(3 * time.Second)
	}
	s.after(took, func() {
		p.calls[name] = false
		sent := &core.Sent{Send: c}
		var unfit []*core.Task
		for _, t := range c.Tasks {
			h := of(t)
			h.over = true
			if t.Result = p.result(h.row, name); t.Result.Class == errclass.ClassRefused && !c.To.ByEvent {
				unfit = append(unfit, t)
				continue
			}
			if t.Tried = true; t.Result.Class == errclass.ClassDone {
				h.done = true
				h.handled++
			}
			sent.Tasks = append(sent.Tasks, t)
		}
		if len(unfit) > 0 {
			p.tell(&core.Reported{Tasks: unfit})
		}
		p.tell(sent)
	})
}

// route finds the destinations of events.
func (p *proc) route(c *core.Route) {
	s := p.sim
	s.after(s.upTo(50*time.Millisecond), func() {
		e := &core.Routed{Route: c}
		var unfit []*core.Task
		for _, t := range c.Tasks {
			h := of(t)
			if s.chance(100) && !s.bells {
				h.began, h.over, t.Result = true, true, errclass.New(errclass.ClassRefused, "no destination")
				unfit = append(unfit, t)
				continue
			}
			i := slices.IndexFunc(e.Destinations, func(d core.Destined) bool { return d.Destination == h.destination })
			if i < 0 {
				i = len(e.Destinations)
				e.Destinations = append(e.Destinations, core.Destined{Destination: h.destination})
			}
			e.Destinations[i].Tasks = append(e.Destinations[i].Tasks, t)
		}
		if len(unfit) > 0 {
			p.tell(&core.Reported{Tasks: unfit})
		}
		p.tell(e)
	})
}

func (p *proc) readPauses() {
	p.reading = false
	if p.sim.now.Before(p.sim.database) || p.sim.chance(20) {
		p.tell(&core.PausesRead{Err: errDatabase})
		return
	}
	read := p.sim.pauses
	p.reading = true
	p.sim.after(p.sim.upTo(20*time.Millisecond), func() {
		p.reading = false
		p.tell(&core.PausesRead{Pauses: read})
	})
}

// askBell asks the doorbell, which is refused while a transaction is open that has enqueued without a ring.
func (p *proc) askBell(c core.AskBell) {
	s := p.sim
	s.require(c.Request == p.request+1, "%s asks the doorbell out of order", p.name)
	p.request, p.asleep = c.Request, c.Asleep
	s.after(s.upTo(5*time.Millisecond), func() {
		if p.request != c.Request || p.crashed || p.ended || p.stopping {
			return
		}
		if !c.Asleep {
			if p.watches {
				p.watches = false
				s.ring()
			}
			return
		}
		others := slices.ContainsFunc(s.procs, func(o *proc) bool { return o.watches })
		if !others && s.open > 0 {
			p.tell(core.Answered{Request: c.Request, Bell: sleep.Busy})
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
	s := p.sim
	s.require(!p.renewing, "%s renews twice", p.name)
	p.renewing = true
	sent := s.now
	s.after(s.upTo(500*time.Millisecond), func() {
		p.renewing = false
		done := &core.Renewed{Renew: c}
		if s.now.Before(s.database) || s.chance(10) || p.databaseOver {
			p.tell(done)
			return
		}
		for _, t := range c.Tasks {
			h := of(t)
			became := core.Gone
			switch {
			case h.row.lockedBy == p && h.row.claimNo == h.claimNo && h.final == "" && h.leased():
				became = core.Prolonged
				h.row.lockedUntil = s.now.Add(p.cfg.LeaseDuration)
			case s.chance(10):
				became = core.Kept
			}
			done.Outcomes = append(done.Outcomes, became)
		}
		_ = sent
		p.tell(done)
	})
}

// end checks that p leaves nothing behind.
func (p *proc) end(e *core.End) {
	s := p.sim
	p.ended = true
	if p.cfg.Drain {
		s.stats.Drains++
	}
	s.require(p.stopping || p.cfg.Drain, "%s ends by itself", p.name)
	s.require(e.Unsettled == 0 || p.databaseOver, "%s leaves %d events unsettled", p.name, e.Unsettled)
	s.require(len(e.Running) == 0 || p.stopping, "%s leaves handlers running", p.name)
	if e.Unsettled == 0 && len(e.Running) == 0 && e.Err == nil && !p.doubtful {
		p.requireReleased()
	}
	if s.bells { // what it has released others find by a poll
		s.ring()
	}
	for _, r := range s.rows {
		r.abandoned = r.abandoned || s.bells && r.lockedBy == p && r.leased()
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
		leased := r.lockedBy == p && r.leased() && !r.lockedUntil.Before(s.now) && !p.lostLease(r)
		s.require(!leased, "%s leaves event %s leased", p.name, short(r.id))
	}
}

// lostLease reports whether p has given up the lease of r, although it has not run out yet.
func (p *proc) lostLease(r *row) bool { return r.lockedUntil.Sub(p.sim.now) < p.cfg.LeaseDuration/5 }

// requireDrained checks that a drain has taken everything that was due when it began, and that nothing has kept it from
// taking.
func (p *proc) requireDrained() {
	s := p.sim
	if len(core.Resting(p.cfg.Targets)) > 0 || s.pauses.Any() || s.paused.After(p.began) || len(s.away) > 0 {
		return
	}
	for _, r := range s.rows {
		if r.topic == limitedTopic {
			continue // a limit may have been reached
		}
		untouched := r.claimNo == 0 && r.visible && r.busy == nil && !r.changed.After(p.began)
		s.require(!untouched || r.due.After(p.began.Add(-2*time.Second)), "%s has ended, and event %s of %s is due",
			p.name, short(r.id), r.topic)
	}
}
