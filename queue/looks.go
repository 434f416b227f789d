package queue

import (
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/postgres/tenantlane"
	"github.com/outboxgen/outboxgen/outbox"
)

// claims makes the claims of a dispatcher. They walk on from where the earlier ones have ended, and pass over nothing
// twice.
type claims struct {
	d       *Dispatcher
	ahead   walk
	tries   map[*target.Target]*walk // of claims that find out whether a target is available again
	leftOut map[string]bool          // topics that some claim was not of, because their targets were away
	paused  *pauses                  // what the latest claim was not of
}

func newClaims(d *Dispatcher) *claims {
	return &claims{d: d, ahead: walk{in: d.lanes}, tries: make(map[*target.Target]*walk), leftOut: make(map[string]bool), paused: d.pauses.Load()}
}

// sync takes notice of what is paused now. What was paused until now is behind the walks.
func (c *claims) sync() {
	paused := c.d.pauses.Load()
	if paused == c.paused {
		return
	}
	if paused.ended(c.paused) {
		c.ahead.restart()
		clear(c.tries)
	}
	c.paused = paused
}

// request returns a claim of up to size events, of the topics that are neither resting nor stalled, which begins
// at starts; or nil if all topics are.
func (c *claims) request(size int, reclaim bool, starts func(size int) []start) *claim {
	c.sync()
	q := c.d.request(size, reclaim)
	if q == nil {
		c.include(nil)
		return nil
	}
	c.include(q.topics)
	q.starts = starts(q.size)
	return q
}

// next returns the starts of a claim that walks on, without events whose lease has run out. While something is paused, it
// walks in pieces, because any number of paused events may stand in a row.
func (c *claims) next(size int) []start {
	if c.paused.any() {
		c.ahead.partial = false
		return c.ahead.pieces(size, false)
	}
	return c.ahead.onward(size, time.Now())
}

// nextPieces is next for a claim that may be of such events too.
func (c *claims) nextPieces(size int) []start { return c.ahead.pieces(size, false) }

// include notes which topics are claimed. Events of those that were left out until now are behind the walk.
func (c *claims) include(topics []string) {
	if len(topics) == len(c.d.topics) && len(c.leftOut) == 0 {
		return
	}
	claimed := make(map[string]bool, len(topics))
	for _, topic := range topics {
		claimed[topic] = true
		if c.leftOut[topic] {
			delete(c.leftOut, topic)
			c.ahead.restart(c.d.lanesOf(topic)...)
		}
	}
	for _, topic := range c.d.topics {
		if !claimed[topic] {
			c.leftOut[topic] = true
		}
	}
}

// try returns a claim of one event of t, to find out whether t is available again.
func (c *claims) try(t *target.Target, reclaim bool) *claim {
	c.sync()
	w := c.tries[t]
	if w == nil {
		w = &walk{in: c.d.lanes}
		c.tries[t] = w
	}
	q := c.d.requestTry(t, reclaim)
	q.starts = w.pieces(q.size, false)
	return q
}

// tried moves the walk of tries of t.
func (c *claims) tried(t *target.Target, x *roundTrip) {
	w := c.tries[t]
	if w == nil {
		return
	}
	if w.advance(x); len(x.claimed) > 0 || !w.more() {
		delete(c.tries, t)
	}
}

// lanesOf returns the lanes that have events of a topic; none means all.
func (d *Dispatcher) lanesOf(topic string) []int16 {
	if d.handlers[topic].fairness == outbox.FairnessTenant {
		return nil
	}
	return []int16{tenantlane.Of(topic, uuid.NullUUID{})}
}

const (
	// lookEvery is how often a busy dispatcher looks from the head at most.
	lookEvery = 100 * time.Millisecond
	// lookShare is how many times as long as a look the pause after it is: looks take at most a twentieth of the time.
	lookShare = 20
)

// looks are claims from the head of the lanes. They find what the walk ahead has passed: events that were committed later
// than the trail after their due time, that were released, or whose lease has run out. A round of looks goes from the
// head, piece by piece, to where the walk ahead is.
type looks struct {
	walk    walk
	front   [tenantlane.Count]stage // of the walk ahead when the claim under way began
	wanted  bool                    // a round is under way, or is to begin
	begun   bool                    // it is under way
	running bool                    // one of its claims is under way
	again   bool                    // another round is to follow, because something may have come behind this one
	from    time.Time               // when the next claim may begin
}

// soon asks for a round from the head. It begins when the pause after the latest look is over.
func (l *looks) soon() {
	if l.wanted {
		l.again = l.begun
		return
	}
	l.walk.restart()
	l.wanted, l.begun, l.again = true, false, false
}

// rest delays the next look until at least from.
func (l *looks) rest(from time.Time) {
	if l.from.Before(from) {
		l.from = from
	}
}

// due reports whether to look now.
func (l *looks) due(now time.Time) bool { return l.wanted && !l.running && !now.Before(l.from) }

// next returns the starts of the next look.
func (l *looks) next(ahead *walk) func(size int) []start {
	return func(size int) []start {
		l.begun, l.front = true, ahead.lanes
		return l.walk.pieces(size, true)
	}
}

// onClaim handles the end of a look.
func (l *looks) onClaim(x *roundTrip, ahead *walk, now time.Time) {
	behind := false
	for _, e := range x.leased() {
		if e.Reclaimed || placeOf(e).compare(l.front[e.lane].after) < 0 {
			behind = true
		}
	}
	l.walk.advance(x)
	for i := range l.walk.lanes {
		at, front := &l.walk.lanes[i], &ahead.lanes[i]
		switch {
		case at.seen:
			if !front.seen || at.after.compare(front.after) > 0 {
				*front = *at
			}
		case at.dense && at.after.compare(l.front[i].after) < 0: // there may be many more
			*front = *at
		case at.after.compare(l.front[i].after) >= 0:
			at.seen = true
		}
	}
	over := !l.walk.more()
	switch {
	case behind: // there may be more
		l.from = now
	case over:
		l.from = now.Add(max(lookEvery, lookShare*x.claimTook))
	default:
		l.from = now.Add(lookShare * x.claimTook)
	}
	if over {
		again := behind || l.again
		if l.wanted = false; again {
			l.soon()
		}
	}
}
