package core

import (
	"slices"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// Batch is what the workers of a lease handle: the events of one key one after the other, those of different keys
// concurrently. With one worker all events are handled in the order of the log. From the command Handle to the event
// Handled it is in the hands of the shell, which guards it by a mutex; the core does not touch it then.
type Batch struct {
	Lease *Lease
	// Stopping is set by the shell, before each call of a method, when no more handlers may be started.
	Stopping bool

	cfg       *Config
	budget    *budget // of what may be started
	keys      map[string]*keyState
	entries   []*Entry  // not processed yet, parked ones first
	blocked   bool      // an event of the log blocks the others
	halted    bool      // nothing more is started
	limited   bool      // likewise, because of the rate
	resumes   time.Time // when the rate allows more
	abandoned bool      // nobody waits for the handlers that still run
	leaseLost bool      // failures from now on are not the handlers'
	broken    bool      // so is the transaction of the handlers

	// Of a handler of batches.
	waits     bool // what does not fill a batch waits for more
	held      bool // such events are left to the next lease
	fresh     bool // a call had events that come from the log and were not tried before
	lastCall  int  // how many events the latest call has; 0 before the first
	fruitless int  // events that have failed in a row, each alone
}

// keyState is the state of one key. Most have none while there is one worker.
type keyState struct {
	busy    bool     // its handler is running
	stopped bool     // one of its events waits for a retry
	parked  bool     // and the events behind it are parked
	queue   []*Entry // events that came while it was busy
}

func newBatch(cfg *Config, lease *Lease, limit *budget, entries []*Entry) *Batch {
	return &Batch{Lease: lease, cfg: cfg, budget: limit, keys: make(map[string]*keyState), entries: entries}
}

// Len returns how many events have not been processed yet.
func (b *Batch) Len() int { return len(b.entries) }

// mayGoOn reports whether another handler may be started.
func (b *Batch) mayGoOn() bool { return !b.halted && !b.limited && !b.Stopping && !b.budget.spent() }

// Next returns the first event that may be started, or nil. It counts as started.
func (b *Batch) Next(now time.Time) *Entry {
	for len(b.entries) > 0 && b.mayGoOn() {
		e := b.entries[0]
		b.entries = b.entries[1:]
		if b.starts(now, e, false) {
			return e
		}
	}
	return nil
}

// starts reports whether e may be started. It counts as started then. Its key may be busy if own says that it is the
// caller's.
func (b *Batch) starts(now time.Time, e *Entry, own bool) bool {
	if e.Status != Waiting {
		return false
	}
	var k keyState
	if known := b.keys[e.Key]; known != nil {
		k = *known
	}
	switch {
	case k.busy && !own:
		k := b.stateOf(e.Key)
		k.queue = append(k.queue, e)
	case k.parked && e.ParkedNo == 0:
		e.Status = Parked
	case k.stopped, b.blocked && e.ParkedNo == 0:
	case e.Newer:
		b.stateOf(e.Key).stopped = true
	case b.mustWait(e):
		b.stateOf(e.Key).stopped, b.blocked = true, b.cfg.Concurrency == 1
	case !b.admitted(now, e):
	default:
		e.retry, e.Lacks, e.Started, e.Running = nil, "", true, true
		b.budget.take(1)
		if b.cfg.Concurrency > 1 {
			b.stateOf(e.Key).busy = true
		}
		return true
	}
	return false
}

// mustWait reports whether e must not be tried in this lease. A one-by-one lease tries only the event whose attempt it
// has counted.
func (b *Batch) mustWait(e *Entry) bool {
	return e.retry != nil && (b.Lease.OneByOne || !e.retry.targetBack())
}

// admitted reports whether e may be tried now. If not, e waits for its target.
func (b *Batch) admitted(now time.Time, e *Entry) bool {
	to := e.target()
	if to == nil { // it was parked when the listener still read its topic
		return true
	}
	n, why := to.Admit(now, 1)
	if n == 0 {
		b.wait(now, e, why.Text, false)
	}
	return n > 0
}

// Finish records the result of a handler.
func (b *Batch) Finish(now time.Time, e *Entry, r errclass.Result) {
	if b.abandoned {
		return // too late: the lease has ended
	}
	e.Running = false
	if k := b.keys[e.Key]; k != nil {
		k.busy = false
		if len(k.queue) > 0 {
			b.entries, k.queue = slices.Concat(k.queue, b.entries), nil
		}
	}
	if b.leaseLost && r.Class != errclass.ClassDone || b.broken {
		return // it counts as not started
	}
	b.settle(now, e, r, true)
	failed := e.Status == Retried || e.Status == Waiting
	b.blocked = b.blocked || b.cfg.Concurrency == 1 && e.ParkedNo == 0 && failed
}

// settle sets the status of e, whose result is r. first is set for the first event of a call that finds its target
// unavailable: this event is tried to find out when the target is available again.
func (b *Batch) settle(now time.Time, e *Entry, r errclass.Result, first bool) {
	e.Running = false
	switch r.Class {
	case errclass.ClassUnavailable:
		b.wait(now, e, r.Text, first)
		return
	case errclass.ClassNotSent:
		e.Started = false
		k := b.stateOf(e.Key)
		if k.stopped = true; k.parked && e.ParkedNo == 0 {
			e.Status = Parked
		} else if !r.Behind && !b.Stopping { // otherwise it would be tried again immediately, for nothing
			pause := b.cfg.FirstPause
			if r.Waits {
				pause, e.Lacks = b.cfg.WaitPause, r.Text
			}
			e.retry = &Retry{until: now.Add(pause), text: r.Text}
		}
		return
	}
	if b.cfg.decide(e, r); e.Status != Retried {
		return
	}
	k := b.stateOf(e.Key)
	if k.stopped && e.ParkedNo != 0 { // its publisher has sent it although one before it had failed: a key has one head
		e.Status, e.Started, e.Result = Waiting, false, errclass.Result{}
		return
	}
	k.stopped = true
	if e.ParkedNo == 0 && b.cfg.ParkKeys && b.Lease.MayPark {
		e.Status, k.parked = Parked, true
	}
}

// wait makes e wait for its target, with its attempt uncounted. Events of other targets do not wait with it: e is
// parked unless all events of the listener have this target.
func (b *Batch) wait(now time.Time, e *Entry, why string, first bool) {
	to := e.target()
	delay := to.RetryIn(now)
	if !first {
		delay = max(delay, to.LaterDelay())
	}
	e.Started, e.Running, e.Away, e.retry = false, false, true, &Retry{until: now.Add(delay), text: why, away: to}
	k := b.stateOf(e.Key)
	k.stopped = true
	switch {
	case e.ParkedNo != 0:
	case b.Lease.MayParkAway && len(b.cfg.Targets) > 1:
		e.Status, k.parked = Parked, true
	default:
		b.blocked = b.cfg.Concurrency == 1
	}
}

// LoseLease stops starting handlers because the lease is lost.
func (b *Batch) LoseLease() { b.halted, b.leaseLost = true, true }

// BreakTx stops starting handlers because their transaction is broken.
func (b *Batch) BreakTx() { b.halted, b.broken = true, true }

// Abandon ends the batch although handlers may still run: what they return is not recorded any more.
func (b *Batch) Abandon() { b.halted, b.abandoned = true, true }

// Running lists the events whose handlers are running.
func (b *Batch) Running() string {
	var names []string
	for _, e := range b.Lease.Current() {
		if e.Running {
			names = append(names, e.Namespace+"/"+e.Topic+" "+e.ID.String())
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// stateOf returns the state of a key.
func (b *Batch) stateOf(key string) *keyState {
	k := b.keys[key]
	if k == nil {
		k = &keyState{}
		b.keys[key] = k
	}
	return k
}

// mayStart reports whether no event of e's key is before e. If one is, e waits.
func (b *Batch) mayStart(e *Entry) bool {
	var k keyState
	if known := b.keys[e.Key]; known != nil {
		k = *known
	}
	switch {
	case k.parked && e.ParkedNo == 0:
		e.Status = Parked
		return false
	case b.mustWait(e):
		b.stateOf(e.Key).stopped = true
		return false
	}
	return !k.stopped
}

// budget is how many more handlers a Drain may start. A nil budget has no bound.
type budget struct{ left int }

// take reduces b by n events; a negative n gives them back.
func (b *budget) take(n int) {
	if b != nil {
		b.left -= n
	}
}

// spent reports whether nothing may be started any more.
func (b *budget) spent() bool { return b != nil && b.left <= 0 }

// atMost returns n, or what is left of b if that is less.
func (b *budget) atMost(n int) int {
	if b == nil {
		return n
	}
	return min(n, b.left)
}
