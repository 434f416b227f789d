package core

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/postgres/tenantlane"
)

// Claim says what a claim takes.
type Claim struct {
	Size, Reclaims int // Reclaims is how many events with an expired lease it may take
	Topics         []string
	Starts         []Start
	InFlight       []uuid.UUID // of the claimer: not taken although their lease has run out
	Paused         *Pauses
}

// ReclaimsPerClaim is how many events with an expired lease a claim takes. It is small, because one of them may have
// killed the previous holder.
const ReclaimsPerClaim = 5

// InPieces reports whether q ends after pieces, whether what stands in them is claimable or not.
func (q *Claim) InPieces() bool { return q.Starts[0].Piece > 0 }

// claims makes the claims of a dispatcher. A claim begins where the one before has ended. It meets again what lies
// within the trail of its walk; what else came behind the walk is found by looks, or by a walk that is sent back.
type claims struct {
	topics  []Topic
	names   []string // of topics
	in      Lanes
	walk    Walk
	tries   map[*Target]*Walk // of claims that find out whether a target is available again
	leftOut map[string]bool   // topics that some claim was not of, because their targets were away
	paused  *Pauses           // what the latest claim was not of
}

func newClaims(cfg *Config, paused *Pauses) *claims {
	c := &claims{
		topics: cfg.Topics, in: cfg.Lanes, walk: Walk{In: cfg.Lanes}, tries: make(map[*Target]*Walk),
		leftOut: make(map[string]bool), paused: paused,
	}
	for _, t := range cfg.Topics {
		c.names = append(c.names, t.Name)
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
		clear(c.tries)
	}
	c.paused = paused
}

// request returns a claim of up to size events, of the topics that are neither resting, stalled nor paused, which
// begins at starts; or nil if all topics are. With reclaim, the claim includes events whose lease ran out.
func (c *claims) request(now time.Time, size int, reclaim bool, paused *Pauses, starts func(size int) []Start) *Claim {
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
	q := &Claim{Size: size, Topics: topics, Paused: paused, Starts: starts(size)}
	if reclaim {
		q.Reclaims = ReclaimsPerClaim
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
			c.walk.Restart(t.lanes()...)
		}
	}
}

// lanes returns the lanes that have events of the topic; none means all.
func (t *Topic) lanes() []int16 {
	if t.Fair {
		return nil
	}
	return []int16{tenantlane.Of(t.Name, uuid.NullUUID{})}
}

// try returns a claim of one event of t, to find out whether t is available again. With reclaim, this may be an event
// whose lease ran out. There may be no other such claim.
func (c *claims) try(t *Target, reclaim bool, paused *Pauses) *Claim {
	c.sync(paused)
	w := c.tries[t]
	if w == nil {
		w = &Walk{In: c.in}
		c.tries[t] = w
	}
	t.Rest.RequestTry()
	topics := c.where(func(o *Target) bool { return o == t })
	q := &Claim{Size: 1, Topics: topics, Paused: paused, Starts: w.Pieces(1, false)}
	if reclaim {
		q.Reclaims = 1
	}
	return q
}

// tried moves the walk of tries of t.
func (c *claims) tried(now time.Time, t *Target, q *Claim, f *Found) {
	w := c.tries[t]
	if w == nil {
		return
	}
	if w.Advance(now, q, f); len(f.Rows) > 0 || !w.More() {
		delete(c.tries, t)
	}
}
