package core

import "time"

// A listener whose batches wait to fill reads how many events there are before it takes a lease, and waits without one.
// Nothing is held meanwhile: no transaction, no row and no connection.

// waits reports whether batches wait for more events. A Drain handles what there is.
func (c *Core) waits() bool { return c.cfg.Wait > 0 && !c.cfg.Drain && !c.stopping }

// mustFill reports whether the next lease is to wait for events, if there are too few. It does not wait for a lease
// that it has had before, or cannot have.
func (c *Core) mustFill() bool {
	w := c.wait
	none := w != nil && (w.Paused || w.Blocked || w.Resharding || w.ForeignLease || w.Kept && !c.mayTakeOver())
	return c.waits() && !c.filled && !c.repeats && !none
}

// fill reads how many events there are.
func (c *Core) fill() {
	c.state, c.until = Filling, time.Time{}
	c.ask(Fill{}, fillCall)
}

// fillLooks is how often a shard looks for more events while the first one waits.
const fillLooks = 8

// onFilled takes a lease if a batch is full, or its first event has waited long enough. It waits otherwise.
func (c *Core) onFilled(in Filled) {
	c.dbRetry.Reset()
	if in.Events > 0 && c.fillUntil.IsZero() {
		c.fillUntil = c.now.Add(c.cfg.Wait - min(in.Age, c.cfg.Wait))
		c.worked = true
		c.do(Report{IsWorking, 0})
	}
	if in.Ready || in.Events == 0 || in.Events >= c.cfg.Batch || !c.now.Before(c.fillUntil) {
		// What is left from the latest lease, and is not found, was committed late: it stands behind what looks can see.
		c.foundNone, c.heldBack = in.Events == 0 && !in.Ready && !c.heldBack, false
		c.filled, c.scanSize = true, max(c.scanSize, in.Scanned)
		c.goOn()
		return
	}
	c.until = earlier(c.fillUntil, c.now.Add(c.cfg.Wait/fillLooks))
	if c.stopping {
		c.goOn()
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
