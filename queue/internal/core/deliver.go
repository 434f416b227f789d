package core

import (
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// deliver starts passes while there is something for them to do.
func (c *Core) deliver(now time.Time) {
	if c.forRated(now).some() {
		c.turns.feed()
	}
	for !now.Before(c.pausedUntil) {
		want := c.room(now)
		if !c.worthwhile(want) && (len(c.passes) == MaxPasses || c.tryable(now) == nil) {
			return
		}
		c.pass(now, want)
	}
}

// worthwhile reports whether a pass that claims up to want should start. If no pass is under way, any work is enough;
// otherwise there must be half a batch, so that batches stay large.
func (c *Core) worthwhile(want int) bool {
	switch todo := max(len(c.finished), want); len(c.passes) {
	case 0:
		return todo > 0
	case MaxPasses:
		return false
	default:
		return todo >= c.half() || c.mayFollowRing() && want > 0
	}
}

// mayFollowRing reports whether a ring has come that no claim has followed, and one may follow it beside another pass:
// what that pass claims may have been chosen before, and it waits for its commit. Claims of turns follow each other,
// because one passes over the keys that another has locked.
func (c *Core) mayFollowRing() bool { return c.rung && !c.turns.active }

func (c *Core) half() int { return (c.growth.Size(c.capacity) + 1) / 2 }

// room returns how many events to claim now. What the same round trip settles counts as free. It is zero if nothing is
// claimable or claims are paused, and also if there is little room while enough events wait for the workers. Two passes
// claim at the same time only from a backlog, each up to half of the capacity, and after a ring.
func (c *Core) room(now time.Time) int {
	free := c.free(now)
	if !c.claimable && !c.looks.due(now) && !c.turns.due(now) || c.claimsPaused(now) || free <= 0 ||
		c.claiming > 0 && !c.backlog && !c.mayFollowRing() {
		return 0
	}
	kept := c.keepsWorker(now) && c.running < c.cfg.Concurrency
	busy := c.unfinished(now) - c.settling
	c.tight = !kept && busy+c.claiming > c.cfg.Concurrency && free < c.growth.Size(c.capacity)/4
	if c.tight && !c.turns.dueOthers(now) {
		return 0
	}
	if c.backlog || c.mayFollowRing() {
		free = min(free, c.half())
	}
	return min(free, c.growth.Size(c.cfg.BatchSize))
}

// free returns how many more events may be in flight.
func (c *Core) free(now time.Time) int {
	return c.growth.Size(c.capacity) - c.unfinished(now) - c.reserved
}

// unfinished returns how many events in flight count, of those that are not finished.
func (c *Core) unfinished(now time.Time) int {
	return c.inFlight - c.stalled(now) - min(c.batched, c.extra) - len(c.finished)
}

// reservedBy returns the room that p needs for what it claims, in addition to what it settles.
func reservedBy(p *Pass) int { return max(0, p.want-len(p.Settle)) }

// reclaims reports whether p may claim events whose lease has run out.
func (p *Pass) reclaims() bool { return p.Claim != nil && p.Claim.Reclaims > 0 }

// pass starts a pass that settles all finished tasks and claims up to want, or one event of a target that is to be
// tried.
func (c *Core) pass(now time.Time, want int) {
	for _, t := range c.finished {
		c.turns.freed(t.turn())
	}
	p := &Pass{want: want, generation: c.generation}
	if p.try = c.tryable(now); p.try != nil {
		p.Claim, p.want = c.claims.try(now, p.try, c.mayReclaim(now), c.pauses), 1
	} else if want > 0 {
		if c.nextIsOfTurns(now) {
			p.Claim = c.claims.ofTurns(now, want, c.forRated(now), !c.tight, c.mayReclaim(now), c.pauses)
			p.turns = p.Claim != nil
		} else if c.looks.due(now) {
			p.Claim = c.claims.request(now, want, c.mayReclaim(now), c.pauses, c.looks.starts(&c.claims.walk))
			if p.look = p.Claim != nil; !p.look {
				c.looks.from = now.Add(lookEvery) // everything rests or is paused
			}
		} else {
			p.Claim = c.claims.request(now, want, false, c.pauses, c.claims.onward(now))
		}
	}
	c.beginPass(now, p)
}

// nextIsOfTurns reports whether the next claim is of events that have turns. It is every other one, if there are others
// to claim.
func (c *Core) nextIsOfTurns(now time.Time) bool {
	others := len(c.claims.walk.lanes) > 0 && (c.claimable || c.looks.due(now))
	c.turns.last = c.turns.due(now) && (c.tight || !others || c.turns.active && !c.turns.last)
	return c.turns.last
}

// mayReclaim reports whether events whose lease has run out may be taken. They may not while an event on its last
// attempt is in flight, because one of them might kill the process. They may not right after an outage of the database
// either, because live processes have yet to settle what they have in flight.
func (c *Core) mayReclaim(now time.Time) bool {
	return !c.reclaiming && c.lastAttempt == nil && !c.suspecting(now) && !now.Before(c.reclaimFrom)
}

// beginPass begins p, which settles all finished tasks.
func (c *Core) beginPass(now time.Time, p *Pass) {
	p.Settle, c.finished = c.finished, nil
	if p.Claim == nil && len(p.Settle) == 0 { // every target is away
		c.onClaim(now, &PassDone{Pass: p})
		return
	}
	if p.Claim != nil {
		p.rung, c.rung = c.rung, false
	}
	c.settle(now, p)
	p.began, p.failures = now, c.failures
	if p.reclaims() {
		p.Claim.InFlight = c.atRisk(now)
	}
	c.settledBeside(p)
	c.passes = append(c.passes, p)
	c.settling += len(p.Settle)
	c.claiming += p.want
	c.reserved += reservedBy(p)
	c.reclaiming = c.reclaiming || p.reclaims()
	c.looks.running = c.looks.running || p.look
	c.do(p)
}

// settledBeside tells claims of events that have turns of what is settled while they are under way: p, which begins, and
// the other passes.
func (c *Core) settledBeside(p *Pass) {
	for _, other := range c.passes {
		other.seesSettled(p)
		p.seesSettled(other)
	}
}

// seesSettled tells the claim of p of what other settles.
func (p *Pass) seesSettled(other *Pass) {
	if p.Claim == nil || p.Claim.Turns == nil {
		return
	}
	for _, t := range other.Settle {
		if t.Turn != "" {
			p.Claim.Turns.beside = append(p.Claim.Turns.beside, t.turn())
		}
	}
}

// settle says how the tasks of p are settled.
func (c *Core) settle(now time.Time, p *Pass) {
	for _, t := range p.Settle {
		t.As, t.After = Release, 0
		if t.unstarted {
			if t.Shared {
				t.After = c.cfg.FirstPause
			}
			continue
		}
		switch t.Result.Class {
		case errclass.ClassDone:
			t.As = Ack
		case errclass.ClassFailed, errclass.ClassRefused:
			t.As = Nack
		case errclass.ClassUnavailable:
			p.HandedBack++
			if t.wait > 0 {
				t.After = t.wait
			} else if t.Tried { // due after those that were not tried, so that the next try is of another event
				t.After = max(t.to.Rest.RetryIn(now), time.Millisecond)
			}
		case errclass.ClassNotSent:
			p.HandedBack++
			if t.Result.Waits {
				t.After = c.cfg.WaitPause
			} else if t.Tried { // otherwise it would be claimed again immediately, for nothing
				t.After = c.cfg.FirstPause
			}
		}
	}
}

// onPassDone takes in a pass that is over. After an error, the tasks that it should have settled are finished tasks
// again, except those known to be settled. Claimed events are handled even then, if the claim was committed.
func (c *Core) onPassDone(now time.Time, e *PassDone) {
	p := e.Pass
	c.passes = slices.DeleteFunc(c.passes, func(other *Pass) bool { return other == p })
	c.settling -= len(p.Settle)
	c.claiming -= p.want
	c.reserved -= reservedBy(p)
	if p.reclaims() {
		c.reclaiming = false
	}
	if p.look {
		c.looks.running = false
	}
	if p.turns {
		c.turns.over(p.Claim.Turns)
		c.turns.took(now.Sub(p.began))
	}
	if p.try != nil {
		c.onTried(now, p.try, e)
	}
	c.settled(e)
	if c.cfg.Drain {
		c.onDrainPass(now, e)
		return
	}
	if p.want > 0 && (e.Err == nil || len(e.Claimed) > 0) {
		if len(e.Claimed) == 0 && len(p.Settle) == 0 {
			c.emptyClaims.Took(now.Sub(p.began))
			pause := c.emptyClaims.Pause()
			c.sleeper.DelayPoll(now, pause)
			if !c.askAt.IsZero() { // a check follows
				c.askAt = later(c.askAt, now.Add(pause))
			}
			c.looks.delay(now.Add(pause)) // a look that is due is a claim, too
			c.turns.round.from = later(c.turns.round.from, now.Add(pause))
		}
		c.onClaim(now, e)
	}
	if e.Err == nil {
		if c.failures > 0 {
			c.reclaimFrom = now.Add(reclaimPause)
		}
		c.failures = 0
		return
	}
	if p.want > 0 { // a concurrent claim may have passed over rows because this one had them locked
		c.backlog = false
		c.claims.walk.Failed()
		c.looks.walk.Failed()
		if p.turns {
			c.turns.failed()
		}
		c.requestLook()
	}
	c.onOutage(now, p)
}

// onOutage pauses after a failure of p. Passes that fail together pause once.
func (c *Core) onOutage(now time.Time, p *Pass) {
	if p.failures == c.failures { // otherwise another pass has paused for this outage
		c.failures++
		c.pausedUntil = later(c.pausedUntil, now.Add(c.cfg.Random.Retry(c.failures)))
	}
}

// reclaimPause is the time after an outage of the database within which every live process has had a pass.
const reclaimPause = backoff.LongestPause + backoff.LongestPause/2

// settled takes in what of a pass is settled. The rest is finished again.
func (c *Core) settled(e *PassDone) {
	for _, t := range e.Open {
		t.open = true
	}
	released := false
	for _, t := range e.Pass.Settle {
		released = released || t.As == Release
		if t.As == Release && t.Turn != "" && !t.open {
			c.turns.know(TurnStart{Turn: t.turn()})
		}
		if t.open {
			t.open = false
			continue
		}
		c.remove(t)
		c.inFlight--
	}
	c.finished = append(c.finished, e.Open...)
	if len(e.Open) > 0 {
		c.settleErr = e.Err
	}
	if released {
		c.looks.soon() // the main walk may have passed them
	}
}

// take takes over what was claimed.
func (c *Core) take(now time.Time, e *PassDone) {
	limited := 0
	for _, t := range e.Claimed {
		if t.limitedRate() {
			limited++
			c.rated.expires = earlier(c.rated.expires, t.StartWithin)
		}
		t.to, t.try = c.targetOf[t.Topic], e.Pass.try
		c.leases.add(now, t)
		c.inFlight++
		if t.to.sends() {
			t.to.inFlight++
		}
		c.added(now, t)
		switch {
		case c.stopping || c.pauses.Event(t.Topic, t.Tenant) || t.expired(now): // then the claim has taken all the time
			c.releaseUnstarted(now, t)
		case t.Reclaimed && t.isLastAttempt():
			c.lastAttempt, c.lastAttemptStarted, c.lastAttemptSince = t, false, now
		default:
			c.start(t)
		}
	}
	if e.Pass.turns {
		c.turns.onRated(e.Pass.Claim.Turns, &e.Found, limited)
	}
}

// onClaim takes over what was claimed, and decides whether to claim again.
func (c *Core) onClaim(now time.Time, e *PassDone) {
	p := e.Pass
	if len(e.Claimed) > 0 {
		c.missed = max(c.missed-1, 0)
	} else if p.rung {
		c.missed = min(c.missed+1, 2*manyMissed)
	}
	c.take(now, e)
	c.hand(now)         // first: what other commands wake competes with the handlers for processors
	if p.Claim == nil { // every target is away
		if p.generation == c.generation { // otherwise something has made it claimable since the pass started
			c.claimable = false
		}
	} else if c.walk(now, e); p.try != nil { // the claim was not of the other targets
		return
	} else if p.turns {
		c.backlog = c.turns.backlog(now, len(e.Claimed), p.want)
		if len(e.Claimed) > 0 {
			c.sleeper.Found(now)
		}
	} else {
		c.backlog = len(e.Claimed) == p.want
		switch {
		case len(e.Claimed) > 0: // a short batch does not mean that nothing is left: an event may have been enqueued since
			c.claimable = true
			c.looks.soon() // others may be committed behind them
			c.sleeper.Found(now)
		case c.claims.walk.More() || !p.look && c.claims.walk.partial:
			c.claimable = c.claimable || !p.look
		case p.generation == c.generation: // likewise
			c.claimable = false
		}
	}
	if len(e.Claimed) > 0 {
		if c.isBusy(now, len(e.Claimed)) && c.sleeper.Busy() {
			c.do(AskBell{Request: c.sleeper.Request()})
		}
		return
	}
	if c.claimable || c.claiming > 0 || c.turns.due(now) {
		return
	}
	if c.owesLook {
		c.owesLook = false
		c.looks.soon()
		c.turns.soon()
	}
	may, asks := c.sleeper.Idle()
	if asks {
		c.do(AskBell{Request: c.sleeper.Request(), Asleep: true})
	}
	if may && !c.looks.wanted && !c.turns.round.wanted && c.askAt.IsZero() {
		c.do(SignalIdle)
	}
}

const (
	// While no more than fewEvents are found within a fewWithin, enqueues go on ringing: then each event is claimed as soon
	// as it is committed. A ring costs its producer time, and those of many producers wait for each other.
	fewEvents, fewWithin = 64, 100 * time.Millisecond
)

// isBusy reports whether enqueues need not ring after so many events were found: there are many, there is no room for
// many more, or events wait for handlers, so that other processes should have the next ones.
func (c *Core) isBusy(now time.Time, found int) bool {
	if now.Sub(c.foundSince) > fewWithin {
		c.foundSince, c.found = now, 0
	}
	c.found += found
	return c.found > fewEvents || c.backlog || 2*c.inFlight >= c.growth.Size(c.capacity) || c.running > c.cfg.Concurrency
}

// walk moves the walk of a claim to where the claim has ended.
func (c *Core) walk(now time.Time, e *PassDone) {
	p := e.Pass
	switch {
	case e.Found.At.IsZero(): // nothing is known of the claim
	case p.try != nil:
		c.claims.tried(now, p.try, p.Claim, &e.Found)
	case p.turns:
		c.turns.onClaim(now, p.Claim.Turns, &e.Found)
		c.growOfTurns(now, e)
	case p.look:
		c.looks.onClaim(now, p.Claim, &e.Found, &c.claims.walk)
		c.growOfRelays(now, e)
	default:
		c.claims.walk.Advance(now, p.Claim, &e.Found)
		c.growOfRelays(now, e)
	}
}
