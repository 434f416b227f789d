package core

import "time"

// draining is what only a drain knows: it claims a batch, handles it, and settles it with the claim of the next one.
type draining struct {
	sweeping bool // nothing is due any more
}

// drain starts the next pass when all of the batch is finished.
func (c *Core) drain(now time.Time) {
	if c.passes > 0 || c.inFlight > len(c.finished) || c.readingPauses || c.sweeping {
		return
	}
	if !now.Before(c.pausesAt) {
		c.readPauses(now)
		return
	}
	p := &Pass{want: c.cfg.BatchSize}
	if c.cfg.Limit > 0 {
		p.want = min(p.want, c.cfg.Limit-c.handled)
	}
	if p.want > 0 {
		if p.try = c.tryable(now); p.try != nil && !c.drained[p.try] {
			c.drained[p.try] = true
			p.Claim, p.want = c.claims.try(p.try, true, c.pauses), 1
		} else {
			p.try = nil
			p.Claim = c.claims.request(now, p.want, true, c.pauses, c.claims.inPieces)
		}
	}
	if p.Claim == nil && len(c.finished) == 0 {
		c.endDrain()
		return
	}
	c.beginPass(now, p)
}

// onDrainPass takes over what was claimed, and ends the drain when a claim has found nothing at its end.
func (c *Core) onDrainPass(now time.Time, e *PassDone) {
	p := e.Pass
	c.handled += len(e.Claimed)
	more := false
	switch {
	case p.Claim == nil || e.Found.At.IsZero():
	case p.try != nil:
		c.claims.tried(now, p.try, p.Claim, &e.Found)
		more = c.claims.tries[p.try] != nil && len(e.Claimed) == 0
		c.drained[p.try] = !more
	default:
		c.claims.walk.Advance(now, p.Claim, &e.Found)
		more = c.claims.walk.More()
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
