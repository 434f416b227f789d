package core

import (
	"slices"
	"time"
)

// draining is what only a drain knows: it claims a batch, handles it, and settles it with the claim of the next one.
type draining struct {
	sweeping bool // nothing is due any more
	// dry says that nothing is due of the events that have no turns. Handlers may have enqueued some when something was
	// claimed since.
	dry bool
}

// drain starts the next pass when all of the batch is finished. What is finished long before the rest is settled earlier.
func (c *Core) drain(now time.Time) {
	if len(c.passes) > 0 || c.readingPauses || c.sweeping {
		return
	}
	if c.inFlight > len(c.finished) {
		if !now.Before(c.pausedUntil) && slices.ContainsFunc(c.finished, func(t *Task) bool { return c.renewable(t, now) }) {
			c.beginPass(now, &Pass{early: true})
		}
		return
	}
	if !now.Before(c.pausesAt) {
		c.readPauses(now)
		return
	}
	p := &Pass{want: max(c.cfg.BatchSize, c.extra)}
	if c.cfg.Limit > 0 {
		p.want = min(p.want, c.cfg.Limit-c.handled)
	}
	if p.want > 0 {
		if p.try = c.tryable(now); p.try != nil && !c.drained[p.try] {
			c.drained[p.try] = true
			p.Claim, p.want = c.claims.try(now, p.try, true, c.pauses), 1
		} else {
			p.try = nil
			p.Claim = c.drainClaim(now, p)
		}
	}
	if p.Claim == nil && len(c.finished) == 0 {
		c.endDrain()
		return
	}
	c.beginPass(now, p)
}

// drainClaim returns the next claim of a drain: first of the events that have no turns, then of the others.
func (c *Core) drainClaim(now time.Time, p *Pass) *Claim {
	if c.dry = c.dry || len(c.claims.walk.lanes) == 0; !c.dry {
		return c.claims.request(now, p.want, true, c.pauses, c.claims.inPieces)
	}
	if !c.turns.round.wanted {
		c.turns.begin()
	}
	c.turns.round.from = time.Time{}
	rated := workers{idle: c.cfg.Concurrency, ahead: c.turns.ahead.allowed(now)}
	q := c.claims.ofTurns(now, p.want, rated, true, true, c.pauses)
	p.turns = q != nil
	return q
}

// onDrainPass takes over what was claimed, and ends the drain when a claim has found nothing at its end.
func (c *Core) onDrainPass(now time.Time, e *PassDone) {
	p := e.Pass
	if p.early { // the drain goes on when the rest is finished
		if e.Err != nil {
			c.onOutage(now, p)
		} else {
			c.failures = 0
		}
		return
	}
	c.handled += len(e.Claimed)
	more := false
	if len(e.Claimed) > 0 {
		c.dry = false
	}
	switch {
	case p.Claim == nil || e.Found.At.IsZero():
	case p.try != nil:
		c.claims.tried(now, p.try, p.Claim, &e.Found)
		more = c.claims.tries[p.try] != nil
		c.drained[p.try] = !more
	default:
		c.walk(now, e)
		if p.turns {
			more = c.turns.more()
		} else {
			c.dry, more = len(e.Claimed) == 0 && !c.claims.walk.More(), true
		}
	}
	switch {
	case len(e.Claimed) > 0:
		c.take(now, e) // even after an error: what was claimed is handled first
	case e.Err != nil:
		c.end(&End{Err: e.Err})
	case p.try == nil && !more && !c.stopping:
		c.endDrain()
	}
}

// endDrain ends a drain that has come to its limit, or that has found nothing: now that few events are left to walk
// over, it sweeps.
func (c *Core) endDrain() {
	if c.cfg.Limit > 0 && c.handled >= c.cfg.Limit {
		c.end(&End{Drained: DrainLimit})
		return
	}
	c.sweeping = true
	c.do(Sweep{})
}

func (c *Core) onSwept(e Swept) { c.end(&End{Drained: DrainDone, Err: e.Err}) }
