package core

import (
	"slices"
	"time"
)

// TurnWalk is how far the claims of a caller have come from turn to turn. NewTurnWalk makes one.
type TurnWalk struct {
	turns *turns
	again bool          // when it has come to the end
	spent time.Duration // in the round
	next  time.Time     // when another may begin; zero during one
}

// NewTurnWalk returns a walk that is at the beginning of each of lanes.
func NewTurnWalk(lanes []int32) TurnWalk {
	t := newTurns(lanes, true)
	t.once, t.round.wanted = true, len(lanes) > 0
	return TurnWalk{turns: t}
}

// Cover makes the walk one of lanes. If these are others than before, it begins again.
func (w *TurnWalk) Cover(lanes []int32) {
	if w.turns == nil || !slices.Equal(w.turns.lanes, lanes) {
		*w = NewTurnWalk(lanes)
	}
}

// More reports whether the walk has not come to the end. The next claim has room for what the latest had none for.
func (w *TurnWalk) More() bool { return w.turns != nil && (w.turns.more() || len(w.turns.starved) > 0) }

// Restart sends the walk back to the beginning.
func (w *TurnWalk) Restart() {
	if w.turns != nil {
		*w = NewTurnWalk(w.turns.lanes)
	}
}

// End makes the walk one that has come to the end.
func (w *TurnWalk) End() {
	if w.turns != nil {
		*w = NewTurnWalk(w.turns.lanes)
		w.turns.round.wanted = false
	}
}

// Again makes a walk that has come to the end go on: with what has fallen due since, and now and then from the beginning,
// since others make room in limits, release events, and commit late.
func (w *TurnWalk) Again(now time.Time) {
	switch {
	case w.turns == nil || len(w.turns.lanes) == 0:
	case now.Before(w.next):
		w.turns.wake()
	default:
		w.Restart()
	}
}

// Failed takes note that a claim has failed: the walk begins again, in short pieces.
func (w *TurnWalk) Failed() {
	if w.Restart(); w.turns != nil {
		w.turns.failed()
	}
}

// Next returns the next claim of up to size events.
func (w *TurnWalk) Next(size int) *TurnClaim {
	w.turns.round.from = time.Time{}
	return w.turns.request(time.Time{}, size, workers{idle: size}, true, func(int32) bool { return true })
}

// Advance moves the walk to where the claim q of up to size events has ended, which found f. At the end the walk begins again
// if some claim may have left events that it has met: a full one, and one with events whose lease has run out, of which it
// takes few, and the last attempt of one alone.
func (w *TurnWalk) Advance(now time.Time, q *TurnClaim, size int, f *Found) {
	w.turns.onClaim(time.Time{}, q, f)
	w.spent += f.Took
	w.again = w.again || len(f.Rows) >= size || slices.ContainsFunc(f.Rows, func(e Seen) bool { return e.Reclaimed })
	switch {
	case w.More():
	case w.again:
		w.Restart()
	case w.next.IsZero():
		w.next = now.Add(max(lookEvery, lookShare*w.spent))
	}
}
