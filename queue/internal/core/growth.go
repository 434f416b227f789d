package core

import (
	"slices"
	"time"
)

const (
	// growthTime is the time within which handlers must end as many events as may be in flight after the next step. It is also
	// about how long those in flight hold up an event of another turn.
	growthTime = 30 * time.Millisecond
	// growthPause is how long there is no more room than usual after a claim has met a limit that is reached: what waits here
	// then, another process could start.
	growthPause = time.Second
	// growthSteps is how often the room doubles. Three steps were no faster than two.
	growthSteps = 2
)

// growth doubles the room for events while those that have turns are handled fast and their limits are far away. A claim of
// such events visits turns, and locks and writes the keys of their limits. This costs the less per event the more it takes.
type growth struct {
	room    int // the usual
	steps   int // how often it is doubled now
	since   time.Time
	claimed int       // since then
	from    time.Time // when there may be more room again
}

// size returns n, which is for the usual room, for the room that there is.
func (g *growth) size(n int) int { return n << g.steps }

// onClaim takes in what a claim of events that have turns has found. As many are handled as are claimed, because there is no
// room for more.
func (g *growth) onClaim(now time.Time, f *Found) {
	if slices.ContainsFunc(f.Turns, func(e TurnEnd) bool { return e.State == TurnFull || e.State == TurnIdle }) {
		g.steps, g.from = 0, now.Add(growthPause)
	}
	g.claimed += len(f.Rows)
	next := min(g.steps+1, growthSteps)
	switch slow := now.Sub(g.since) > growthTime; {
	case slow:
		g.steps = max(0, g.steps-1)
	case g.claimed < g.room<<next:
		return
	case !now.Before(g.from):
		g.steps = next
	}
	g.since, g.claimed = now, 0
}
