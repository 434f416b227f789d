package core

import (
	"slices"
	"time"
)

// A rate counts the start of an event when it is claimed, and the start is lost if the event cannot begin in time. So a claim
// takes events of limited rate for workers that are idle, and as many ahead of them as have lately begun in time.

// aheadPause is how long after a lost start nothing is claimed ahead. A claim takes at most a hundredth of what a rate allows in
// that time ahead, see claim_turns. So few starts are lost, however long handlers take.
const aheadPause = time.Second

// workers are what a claim may take events of limited rate for.
type workers struct {
	idle  int // workers that have nothing to do
	ahead int // how many events more
}

func (w workers) some() bool { return w.idle+w.ahead > 0 }

// ahead says how many events of limited rate a claim may take for which no worker is idle. It grows while all that a claim
// has taken begins in the first half of its time, halves when something begins later, and is nothing for a while after an
// event has not begun in time.
type ahead struct {
	n    int
	took int // by the latest claim that has taken all it might; 0 after an event of it that began late
	left int // of those, how many have yet to begin
	from time.Time
}

func (a *ahead) allowed(now time.Time) int {
	if now.Before(a.from) {
		return 0
	}
	return a.n
}

// claimed takes note that a claim has taken n of the most that it might take.
func (a *ahead) claimed(n, most int) {
	if n >= most {
		a.took, a.left = n, n
	}
}

// began takes note that an event has begun, early if most of its time was left.
func (a *ahead) began(now time.Time, early bool) {
	switch a.left--; {
	case !early:
		a.n, a.took = a.n/2, 0
	case a.left == 0 && !now.Before(a.from):
		a.n = max(a.n, 2*a.took)
	}
}

// missed takes note that an event could not begin in time.
func (a *ahead) missed(now time.Time) { *a = ahead{from: now.Add(aheadPause)} }

// rated has the events of limited rate that wait for a worker. They come before all others, because their time is short.
type rated struct {
	tasks   []*Task
	expires time.Time // when the first of those in flight may not begin any more; zero if there are none
	latest  bool      // the latest event that a worker was given was one
}

// limitedRate reports whether the rate of t allows it to begin only for a while.
func (t *Task) limitedRate() bool { return !t.StartWithin.IsZero() }

// expired reports whether the rate of t does not allow it to begin any more.
func (t *Task) expired(now time.Time) bool { return t.limitedRate() && !now.Before(t.StartWithin) }

// early reports whether more than half of the time is left in which t may begin.
func (c *Core) early(now time.Time, t *Task) bool {
	claimed := t.ClaimDeadline.Add(-c.lease)
	return now.Sub(claimed) < t.StartWithin.Sub(now)
}

// keepsWorker reports whether a worker is kept for events of limited rate, because some wait for a claim that has begun or
// can begin. If there is only one worker, it handles others in turn with them. A drain claims when all is handled.
func (c *Core) keepsWorker(now time.Time) bool {
	switch {
	case !c.turns.hungry || c.cfg.Drain || c.cfg.Concurrency == 1 && c.rated.latest:
		return false
	case slices.ContainsFunc(c.passes, func(p *Pass) bool { return p.turns && p.Claim.Turns.Idle > 0 }):
		return true
	}
	return (c.turns.due(now) || len(c.turns.starved) > 0) && c.free(now) > 0 && !c.claimsPaused(now) && !now.Before(c.pausedUntil)
}

// places returns how many tasks the workers may have, one less than there are workers if one is kept. None is kept while
// events of limited rate are there already.
func (c *Core) places(now time.Time) int {
	if !c.ratedWaits() && c.keepsWorker(now) {
		return c.cfg.Concurrency - 1
	}
	return c.cfg.Concurrency + c.cfg.Ahead
}

// ratedWaits reports whether events of limited rate wait for a worker, or for others of their batch.
func (c *Core) ratedWaits() bool {
	return len(c.rated.tasks) > 0 || slices.ContainsFunc(c.batchTargets, func(t *Target) bool {
		return len(t.ready) > 0 && t.ready[0].limitedRate() || len(t.again) > 0 && t.again[0].limitedRate()
	})
}

// forRated returns what a claim may take events of limited rate for.
func (c *Core) forRated(now time.Time) workers {
	idle := max(c.cfg.Concurrency-c.running, 0) // if others wait, it is the one that is kept
	taken := len(c.rated.tasks)
	for _, p := range c.passes {
		if p.turns {
			taken += p.Claim.Turns.Idle
		}
	}
	all := max(idle+c.turns.ahead.allowed(now)-taken, 0)
	idle = min(max(idle-taken, 0), all)
	return workers{idle: idle, ahead: all - idle}
}

// expire takes back what waits for a worker and may not begin any more.
func (c *Core) expire(now time.Time) {
	if c.rated.expires.IsZero() || now.Before(c.rated.expires) {
		return
	}
	c.rated.expires = time.Time{}
	some := false
	for _, t := range c.tasks {
		if t.expired(now) {
			some = true
		} else {
			c.rated.expires = earlier(c.rated.expires, t.StartWithin)
		}
	}
	if some {
		c.withdraw(now)
	}
}
