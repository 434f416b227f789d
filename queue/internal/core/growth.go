package core

import (
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/growth"
)

// There is room for more events than usual while those that have turns, or are published, are fast. A claim of events that
// have turns visits turns, and locks and writes the keys of their limits; a call of a publisher waits for its broker. Both
// cost the less per event the more they have.

// growthOf returns how the room of a dispatcher grows, and whether it publishes. If it has handlers, an event waits for fewer
// others, and a shorter time: of turns, three steps were no faster than two.
func growthOf(cfg *Config, room int) (g growth.Growth, relays bool) {
	if !cfg.Grows {
		return g, false
	}
	handles := false
	for i := range cfg.Topics {
		if cfg.Topics[i].Target.sends() {
			relays = true
		} else {
			handles = true
		}
	}
	g = growth.Relay(room)
	if handles {
		g.Steps, g.Time = 2, 30*time.Millisecond
	}
	return g, relays
}

// growOfTurns takes in a claim of events that have turns. As many are done as are claimed, because there is no room for more.
// There is no more room than usual after the claim has met a limit that is reached: what waits here then, another process
// could start.
func (c *Core) growOfTurns(now time.Time, e *PassDone) {
	if slices.ContainsFunc(e.Found.Turns, func(e TurnEnd) bool { return e.State == TurnFull || e.State == TurnIdle }) {
		c.growth.Reset(now)
	}
	c.growth.Done(now, len(e.Found.Rows), bytesOf(e.Claimed))
}

// growOfRelays takes in another claim. Only events that are published count, and none while others wait for a worker.
func (c *Core) growOfRelays(now time.Time, e *PassDone) {
	if !c.relays {
		return
	}
	published := make([]*Task, 0, len(e.Claimed))
	for _, t := range e.Claimed {
		if c.targetOf[t.Topic].sends() && c.peekReady() == nil {
			published = append(published, t)
		}
	}
	c.growth.Done(now, len(published), bytesOf(published))
}

// shrink takes in the results of a call. If some of its events could not be published, there is the usual room for a while.
// A destination that events say concerns no others.
func (c *Core) shrink(now time.Time, tasks []*Task) {
	for _, t := range tasks {
		if t.line == nil && (t.Result.Class == errclass.ClassFailed || t.Result.Class == errclass.ClassUnavailable) {
			c.growth.Reset(now)
			return
		}
	}
}

func bytesOf(tasks []*Task) (bytes int) {
	for _, t := range tasks {
		bytes += t.Bytes
	}
	return bytes
}
