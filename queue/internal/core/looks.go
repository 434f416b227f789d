package core

import (
	"slices"
	"time"
)

const (
	// lookEvery is how often a busy dispatcher looks from the head at most.
	lookEvery = 100 * time.Millisecond
	// lookShare is how many times as long as a look the pause after it is: looks take at most a twentieth of the time.
	lookShare = 20
)

// looks are claims from the head of the lanes. They find what the main walk, that of the other claims, has passed:
// events that were committed later than the trail after their due time, that were released, or whose lease has run out.
// A round of looks goes from the head, piece by piece, to where the main walk is. For example, the main walk is at
// 12:00:05 in a lane, and an event that is due at 12:00:01 is committed only now: the next round begins at the head and
// claims it.
type looks struct {
	walk    Walk
	front   []stage   // of the main walk when the claim under way began
	wanted  bool      // a round is under way, or is to begin
	begun   bool      // it is under way
	running bool      // one of its claims is under way
	again   bool      // another round is to follow, because something may have come behind this one
	from    time.Time // when the next claim may begin
}

// soon asks for a round from the head. It begins when the pause after the latest look is over.
func (l *looks) soon() {
	if l.wanted {
		l.again = l.begun
		return
	}
	l.walk.Restart()
	l.wanted, l.begun, l.again = true, false, false
}

// delay delays the next look until at least from.
func (l *looks) delay(from time.Time) {
	if l.from.Before(from) {
		l.from = from
	}
}

// due reports whether to look now.
func (l *looks) due(now time.Time) bool { return l.wanted && !l.running && !now.Before(l.from) }

// starts returns the starts of the next look.
func (l *looks) starts(main *Walk) func(size int) []Start {
	return func(size int) []Start {
		l.begun, l.front = true, append(l.front[:0], main.stages...)
		return l.walk.Pieces(size, true)
	}
}

// onClaim handles the end of the look q, which found f.
func (l *looks) onClaim(now time.Time, q *Claim, f *Found, main *Walk) {
	behind := false
	for i := range f.Rows {
		if e := &f.Rows[i]; e.Reclaimed || e.At.Compare(l.frontOf(e.Lane)) < 0 {
			behind = true
		}
	}
	l.walk.Advance(now, q, f)
	for i := range l.walk.stages {
		at, front := &l.walk.stages[i], &main.stages[i]
		switch {
		case at.seen:
			if !front.seen || at.after.Compare(front.after) > 0 {
				*front = *at
			}
		case at.dense && at.after.Compare(l.front[i].after) < 0: // there may be many more
			*front = *at
		case at.after.Compare(l.front[i].after) >= 0:
			at.seen = true
		}
	}
	over := !l.walk.More()
	switch {
	case behind: // there may be more
		l.from = now
	case over:
		l.from = now.Add(max(lookEvery, lookShare*f.Took))
	default:
		l.from = now.Add(lookShare * f.Took)
	}
	if over {
		again := behind || l.again
		if l.wanted = false; again {
			l.soon()
		}
	}
}

// frontOf returns where the main walk was in a lane when the claim under way began.
func (l *looks) frontOf(lane int32) Place {
	if i, is := slices.BinarySearch(l.walk.lanes, lane); is {
		return l.front[i].after
	}
	return Place{}
}
