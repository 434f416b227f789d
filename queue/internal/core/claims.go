package core

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
)

// Claim says what a claim takes.
type Claim struct {
	Size, Reclaims int // Reclaims is how many events with an expired lease it may take
	Topics         []string
	Starts         []Start
	Turns          *TurnClaim  // of events that have turns, in place of Starts
	InFlight       []uuid.UUID // of the claimer: not taken although their lease has run out
	Paused         *Pauses
}

// ReclaimsPerClaim is how many events with an expired lease a claim takes at first. It is small, because one of them
// may have killed the previous holder.
const ReclaimsPerClaim = 5

// InPieces reports whether q ends after pieces, whether what stands in them is claimable or not.
func (q *Claim) InPieces() bool { return q.Starts[0].Piece > 0 }

// claimOf returns a claim of what is available at now; nil if nothing is.
func (c *claims) claimOf(now time.Time, size int, paused *Pauses) *Claim {
	c.sync(paused)
	topics := c.where(func(t *Target) bool {
		stalled, _ := t.Rest.Stalled(now)
		return !stalled && !t.Rest.Resting()
	})
	if len(topics) == 0 || paused.Every(topics) {
		c.include(nil)
		return nil
	}
	c.include(topics)
	return &Claim{Size: size, Topics: topics, Paused: paused}
}

// ofTurns returns a claim of up to size events that have turns; nil if nothing is available. It visits turns that are
// known to have more only with known. It may take events of limited rate for the workers rated.
func (c *claims) ofTurns(now time.Time, size int, rated workers, known, reclaim bool, paused *Pauses) *Claim {
	q := c.claimOf(now, size, paused)
	if q == nil {
		c.turns.rest(now)
		return nil
	}
	q.Turns = c.turns.request(now, size, rated, known, inLanesOf(q.Topics, len(q.Topics) == len(c.topics)))
	if reclaim && len(q.Turns.Hops) > 0 {
		q.Reclaims = c.reclaims
	}
	return q
}

// inLanesOf returns a function that reports whether events of topics that have turns are in a lane.
func inLanesOf(topics []string, all bool) func(int32) bool {
	if all {
		return func(int32) bool { return true }
	}
	lanes := TurnLanesOf(topics)
	return func(lane int32) bool {
		_, is := slices.BinarySearch(lanes, lane)
		return is
	}
}

// claims makes the claims of a dispatcher. A claim begins where the one before has ended. It meets again what lies
// within the trail of its walk; what else came behind the walk is found by looks, or by a walk that is sent back.
type claims struct {
	topics  []Topic
	names   []string // of topics
	limits  int      // how many of topics have limits
	walk    Walk
	turns   *turns
	tries   map[*Target]*trial // of claims that find out whether a target is available again
	leftOut map[string]bool    // topics that some claim was not of, because their targets were away
	paused  *Pauses            // what the latest claim was not of
	// reclaims is how many events with an expired lease a claim takes.
	reclaims int
}

func newClaims(cfg *Config, paused *Pauses) *claims {
	c := &claims{
		topics: cfg.Topics, walk: NewWalk(cfg.lanes()), tries: make(map[*Target]*trial),
		leftOut: make(map[string]bool), paused: paused, reclaims: ReclaimsPerClaim,
	}
	for _, t := range cfg.Topics {
		if c.names = append(c.names, t.Name); t.Limits {
			c.limits++
		}
	}
	return c
}

// sync takes notice of what is paused now. What was paused until now is behind the walks.
func (c *claims) sync(paused *Pauses) {
	if paused == c.paused {
		return
	}
	if paused.Ended(c.paused) {
		c.walk.Restart()
		c.turns.forget()
		clear(c.tries)
	}
	c.paused = paused
}

// request returns a claim of up to size events, of the topics that are neither resting, stalled nor paused, which
// begins at starts; or nil if all topics are. With reclaim, the claim includes events whose lease ran out.
func (c *claims) request(now time.Time, size int, reclaim bool, paused *Pauses, starts func(size int) []Start) *Claim {
	q := c.claimOf(now, size, paused)
	if q == nil {
		return nil
	}
	if q.Topics = c.unlimited(q.Topics); len(q.Topics) == 0 || paused.Every(q.Topics) {
		return nil
	}
	q.Starts = starts(size)
	if reclaim {
		q.Reclaims = c.reclaims
	}
	return q
}

// where returns the topics whose target is wanted. It allocates nothing in the usual case, when all are.
func (c *claims) where(wanted func(*Target) bool) []string {
	if !slices.ContainsFunc(c.topics, func(t Topic) bool { return !wanted(t.Target) }) {
		return c.names
	}
	topics := make([]string, 0, len(c.topics))
	for _, t := range c.topics {
		if wanted(t.Target) {
			topics = append(topics, t.Name)
		}
	}
	return topics
}

// onward returns the starts of a claim that walks on and takes no event whose lease has run out. While something is
// paused, it walks in pieces, because any number of paused events may stand in a row.
func (c *claims) onward(now time.Time) func(size int) []Start {
	return func(size int) []Start {
		if c.paused.Any() {
			c.walk.partial = false
			return c.walk.Pieces(size, false)
		}
		return c.walk.onward(size, now)
	}
}

// inPieces returns the starts of a claim that walks on and may take events whose lease has run out.
func (c *claims) inPieces(size int) []Start { return c.walk.Pieces(size, false) }

// include notes which topics are claimed. Events of those that were left out until now are behind the walk.
func (c *claims) include(topics []string) {
	if len(topics) == len(c.topics) && len(c.leftOut) == 0 {
		return
	}
	claimed := make(map[string]bool, len(topics))
	for _, name := range topics {
		claimed[name] = true
	}
	for _, t := range c.topics {
		switch {
		case !claimed[t.Name]:
			c.leftOut[t.Name] = true
		case c.leftOut[t.Name]:
			delete(c.leftOut, t.Name)
			c.walk.Restart(topiclane.Of(t.Name))
			c.turns.soon()
		}
	}
}

// trial is how far the claims have come that look for an event of a target.
type trial struct {
	walk  Walk
	turns *turns
}

// unlimited returns those of topics whose events need no turn. It allocates nothing if these are all.
func (c *claims) unlimited(topics []string) []string {
	if c.limits == 0 {
		return topics
	}
	var some []string
	for _, t := range c.topics {
		if !t.Limits && slices.Contains(topics, t.Name) {
			some = append(some, t.Name)
		}
	}
	return some
}

// try returns a claim of one event of t, to find out whether t is available again. With reclaim, this may be an event
// whose lease ran out. There may be no other such claim.
func (c *claims) try(now time.Time, t *Target, reclaim bool, paused *Pauses) *Claim {
	c.sync(paused)
	topics := c.where(func(o *Target) bool { return o == t })
	w := c.tries[t]
	if w == nil {
		w = &trial{turns: newTurns(c.turnLanes(t))}
		if len(c.unlimited(topics)) > 0 {
			w.walk = NewWalk(c.walk.lanes)
		}
		c.tries[t] = w
	}
	t.Rest.RequestTry()
	q := &Claim{Size: 1, Topics: topics, Paused: paused}
	if w.walk.More() {
		q.Topics, q.Starts = c.unlimited(topics), w.walk.Pieces(1, false)
	} else {
		w.turns.round.from = time.Time{}
		q.Turns = w.turns.request(now, 1, workers{idle: 1}, true, func(int32) bool { return true })
		q.Turns.Slack = c.turns.slack
	}
	if reclaim {
		q.Reclaims = 1
	}
	return q
}

// turnLanes returns the lanes of the topics of t that take turns, and whether there are any.
func (c *claims) turnLanes(t *Target) (lanes []int32, some bool) {
	var topics []string
	for _, topic := range c.topics {
		if topic.Target == t && topic.Turns {
			topics = append(topics, topic.Name)
		}
	}
	return TurnLanesOf(topics), len(topics) > 0
}

// tried moves the walk of tries of t.
func (c *claims) tried(now time.Time, t *Target, q *Claim, f *Found) {
	w := c.tries[t]
	if w == nil {
		return
	}
	if q.Turns != nil {
		w.turns.onClaim(now, q.Turns, f)
	} else {
		w.walk.Advance(now, q, f)
	}
	if len(f.Rows) > 0 || !w.walk.More() && !w.turns.more() {
		delete(c.tries, t)
	}
}
