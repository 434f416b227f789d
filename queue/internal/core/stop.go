package core

import "time"

// onStop releases what was not started.
func (c *Core) onStop(now time.Time) {
	if c.stopping || c.sweeping {
		return
	}
	c.stopping, c.pausedUntil = true, time.Time{}
	c.withdraw(now)
}

// finishUp settles what is finished, and ends when nothing is in flight any more, or when nobody waits for it.
func (c *Core) finishUp(now time.Time) {
	if c.cfg.Drain && c.inFlight > len(c.finished) && !c.givenUp {
		return // a drain settles what runs in one pass
	}
	for len(c.finished) > 0 && !c.databaseOver && len(c.passes) < MaxPasses {
		if now.Before(c.pausedUntil) {
			return
		}
		c.beginPass(now, &Pass{generation: c.generation})
	}
	switch {
	case len(c.passes) > 0:
	case len(c.finished) > 0: // the database is over
		c.end(&End{Unsettled: len(c.finished), Err: c.settleErr})
	case c.inFlight == 0:
		c.end(&End{})
	case c.givenUp:
		c.end(&End{})
	}
}

func (c *Core) end(e *End) {
	for _, t := range c.tasks {
		if !t.finished {
			e.Running = append(e.Running, t)
		}
	}
	c.ended = true
	c.do(e)
}
