package core

import (
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// Call is a run of events of one topic that a handler of batches gets at once. If the handler fails as a whole, it is
// called again with half of them, and with half of those that are left to suspect, until the event that fails is alone.
// From NextCall until Finish returns false, the events are those of the caller.
type Call struct {
	batch    *Batch
	entries  []*Entry // not over, in order
	size     int      // the first so many are those of the call under way
	suspects int      // one of the first so many has made a call fail; 0 if none is known to
	keys     []string // which are busy; nil if there is one worker
}

// maxFruitless is after how many failures in a row, each of an event alone and with no success in between, the cause is
// hardly in the events. A call that fails as a whole is not searched then: all of its events have failed.
const maxFruitless = 3

// NextCall is Next for a handler of batches: it returns a call with the next events that may be started, or nil. A run
// ends before an event of another topic, and between events that have failed before and those that have not.
func (b *Batch) NextCall(now time.Time) *Call {
	first := b.Next(now)
	if first == nil {
		return nil
	}
	c := &Call{batch: b, entries: []*Entry{first}}
	if to := first.target(); to != nil && !to.Resting() {
		c.fill(now)
	}
	if b.cfg.Concurrency > 1 {
		for _, e := range c.entries {
			c.keys = append(c.keys, e.Key)
		}
	}
	if b.holdsBack(c) {
		b.held = true
		c.end()
		return nil
	}
	b.fresh = b.fresh || first.isFresh()
	c.size = len(c.entries)
	c.begin()
	return c
}

// fill adds the events that follow the first one and may be handled with it.
func (c *Call) fill(now time.Time) {
	b, first := c.batch, c.entries[0]
	own := map[string]bool{first.Key: true}
	for len(c.entries) < b.cfg.Batch && len(b.entries) > 0 && b.mayGoOn() {
		e := b.entries[0]
		if e.Status == Waiting && !first.joins(e) {
			return
		}
		b.entries = b.entries[1:]
		if b.starts(now, e, own[e.Key]) {
			own[e.Key] = true
			c.entries = append(c.entries, e)
		}
	}
}

// joins reports whether o may be handled in one call with e.
func (e *Entry) joins(o *Entry) bool {
	return o.Of == e.Of && (o.Used > 0) == (e.Used > 0) && (o.ParkedNo != 0) == (e.ParkedNo != 0)
}

// holdsBack reports whether the events of c are to wait for others in the log, because they do not fill a batch and
// others of their lease were before them.
func (b *Batch) holdsBack(c *Call) bool {
	first := c.entries[0]
	return b.waits && b.fresh && len(c.entries) < b.cfg.Batch && len(b.entries) == 0 && first.isFresh()
}

// isFresh reports whether e comes from the log and was not tried before.
func (e *Entry) isFresh() bool { return e.ParkedNo == 0 && e.Used == 0 }

// Entries are those of the call to be made.
func (c *Call) Entries() []*Entry { return c.entries[:c.size] }

// Cut leaves only the first n events in the call to be made. The others are left to the next call.
func (c *Call) Cut(n int) {
	c.size = n
	c.begin()
}

// begin marks the events of the call to be made.
func (c *Call) begin() {
	for i, e := range c.entries {
		e.Running = i < c.size
	}
	c.batch.lastCall = c.size
}

// Finish records the results of a call, one for each of its events. whole says that it failed as a whole. It reports
// whether another call is to be made, with the events that Entries returns then.
func (c *Call) Finish(now time.Time, results []errclass.Result, whole bool) (more bool) {
	b := c.batch
	if b.abandoned {
		return false // too late: the lease has ended
	}
	called := c.entries[:c.size]
	for _, e := range called {
		e.Running = false
	}
	if whole && b.searches(called, results[0]) {
		c.suspects = len(called)
		if b.fruitless >= maxFruitless { // each alone, because for one of them it is the last attempt
			c.suspects = 1
		}
		return c.goOn()
	}
	c.entries, c.suspects = c.entries[c.size:], max(c.suspects-c.size, 0)
	if !b.settleCall(now, called, results) {
		c.suspects = 0
	}
	return c.goOn()
}

// searches reports whether the event is searched for that has made a call fail with r. It is not if r says when all are
// to be tried again. The last attempt at an event is otherwise made alone.
func (b *Batch) searches(called []*Entry, r errclass.Result) bool {
	if b.halted || len(called) == 1 || !r.Class.Charged() || r.After != nil && r.Class == errclass.ClassFailed {
		return false
	}
	last := func(e *Entry) bool { return e.Attempt >= e.MaxAttempts }
	return b.fruitless < maxFruitless || slices.ContainsFunc(called, last)
}

// settleCall records the results of the events of a call, and reports whether all are done.
func (b *Batch) settleCall(now time.Time, called []*Entry, results []errclass.Result) (done bool) {
	if b.broken {
		return false // they count as not started
	}
	done = true
	first := true // of those that find their target unavailable
	for i, e := range called {
		r := results[i]
		if r.Class == errclass.ClassDone {
			b.fruitless = 0
		} else {
			done = false
			if b.leaseLost {
				continue
			}
		}
		b.settle(now, e, r, first)
		first = first && r.Class != errclass.ClassUnavailable
		failed := e.Status == Retried || e.Status == Waiting
		b.blocked = b.blocked || b.cfg.Concurrency == 1 && e.ParkedNo == 0 && failed
	}
	if len(called) == 1 && results[0].Class.Charged() {
		b.fruitless++
	}
	return done
}

// goOn prepares the next call of a search, or ends c.
func (c *Call) goOn() (more bool) {
	if b := c.batch; c.suspects == 0 || b.halted || b.Stopping {
		c.end()
		return false
	}
	c.size = max(c.suspects/2, 1)
	c.begin()
	return true
}

// end leaves the events that are not over to the next call.
func (c *Call) end() {
	b := c.batch
	for _, e := range c.entries {
		e.Started, e.Running = false, false
	}
	if len(c.entries) > 0 {
		if to := c.entries[0].target(); to != nil {
			to.Untried() // perhaps it was to find out whether the target is available again
		}
	}
	b.budget.take(-len(c.entries))
	queued := c.entries
	for _, key := range c.keys {
		k := b.stateOf(key)
		queued = slices.Concat(queued, k.queue)
		k.busy, k.queue = false, nil
	}
	b.entries, c.entries = slices.Concat(queued, b.entries), nil
}
