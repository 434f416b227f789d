package core

import "time"

// A listener with a rate asks, before each call of a handler, whether it may start. If it may not, its batch ends, the
// lease ends too, and the shard takes none until the rate allows an attempt.

// Limit takes back an event that Next has returned, because the rate does not allow its attempt before until. Nothing
// more of the batch is started.
func (b *Batch) Limit(e *Entry, until time.Time) {
	c := &Call{batch: b, entries: []*Entry{e}}
	if b.cfg.Concurrency > 1 {
		c.keys = []string{e.Key}
	}
	c.Limit(until)
}

// Limit is Batch.Limit for the events of a call.
func (c *Call) Limit(until time.Time) {
	c.batch.StopUntil(until)
	c.end()
}

// StopUntil makes b start nothing more, because the rate does not allow it before until.
func (b *Batch) StopUntil(until time.Time) { b.limited, b.resumes = true, until }

// isLimited reports whether no attempt may start yet because of the rate.
func (c *Core) isLimited() bool { return c.now.Before(c.resumes) }

// awaitRate ends the lease, if there is one, and waits until the rate allows an attempt. What is not allowed now is not
// due for a Drain.
func (c *Core) awaitRate() {
	switch {
	case c.end != nil:
		c.roundTrip(false)
	case c.cfg.Drain:
		c.finish(Stopped, nil)
	case c.wait == nil:
		c.check()
	case c.wait.Resharding:
		c.idle()
	default:
		c.wait = nil // it looks again after a while for what it must do besides handling events
		c.pause(min(c.resumes.Sub(c.now), c.cfg.PollInterval))
	}
}

// nothingAllowed reports whether the rate allowed no attempt in the lease.
func (c *Core) nothingAllowed() bool {
	if c.batch == nil || !c.batch.limited {
		return false
	}
	for _, e := range c.lease.Entries() {
		if e.Started {
			return false
		}
	}
	return true
}
