// Package growth says how many events a dispatcher or a shard of a listener may have in hand: more than usual while they are
// done fast. It reads no clock.
package growth

import "time"

// Pause is how long there is no more room than usual after Reset.
const Pause = time.Second

// Growth doubles the room for events, step by step, and halves it. A claim, a read and a call of a publisher cost the less
// per event the more events they have. The zero value never grows.
type Growth struct {
	// Room is how many events there is room for usually.
	Room int
	// Steps is how often the room doubles at most.
	Steps int
	// Time is the time within which as many events must be done as there is room for after the next step. It is also about
	// how long those in hand hold up another event.
	Time time.Duration
	// Bytes limits the payload of the events that there is more room for than usual; 0 means no limit.
	Bytes int

	steps   int // how often it is doubled now
	since   time.Time
	done    int       // since then
	from    time.Time // when there may be more room again
	average int       // payload of an event, in bytes
}

// Relay returns the growth of events that are published, by default. A broker takes as long for a few events as for many, so
// the time is long. Three steps make calls of some hundred events.
func Relay(room int) Growth {
	return Growth{Room: room, Steps: 3, Time: 100 * time.Millisecond, Bytes: 8 << 20}
}

// Size returns n, which is for the usual room, for the room that there is.
func (g *Growth) Size(n int) int {
	size := n << g.steps
	if g.Bytes > 0 && g.average > 0 {
		size = min(size, n*(g.Bytes/g.average)/g.Room)
	}
	return max(n, size)
}

// Done takes in that n more events were done, with so many bytes of payload. Events count as done when others take their
// room.
func (g *Growth) Done(now time.Time, n, bytes int) {
	if n > 0 {
		g.average = max(bytes/n, g.average-g.average/8)
	}
	g.done += n
	next := min(g.steps+1, g.Steps)
	switch slow := now.Sub(g.since) > g.Time; {
	case slow:
		g.steps = max(0, g.steps-1)
	case g.done < g.Room<<next:
		return
	case !now.Before(g.from):
		g.steps = next
	}
	g.since, g.done = now, 0
}

// Reset takes the additional room away for a while: events have failed, or what waits here could start elsewhere.
func (g *Growth) Reset(now time.Time) { g.steps, g.from = 0, now.Add(Pause) }
