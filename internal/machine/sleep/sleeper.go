package sleep

import (
	"time"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
)

// Bell is the answer of the doorbell to a request to sleep.
type Bell int

const (
	// Watches: from now on every enqueue rings, because this process or another has the lock.
	Watches Bell = iota
	// Busy: an open transaction has enqueued and will commit without ringing.
	Busy
	// Awaits: likewise, but from now on every enqueue rings, because this process or another waits for the lock.
	Awaits
	// Gone: the connection is lost; nobody watches until there is a new one.
	Gone
)

// Sleeper decides when its owner checks for events again: when an enqueue rings the doorbell, or after a poll
// interval.
type Sleeper struct {
	random  backoff.Random
	bell    bool // there is a doorbell
	asleep  bool // the latest request to it was to watch
	pending bool // that request has not been answered
	watched bool // the answer was that some process watches
	request int  // number of the latest request

	// refusedSince is the first time in a row that no process could watch, because an enqueue was under way, and that no
	// check has found something since. It is zero if there is none. refused counts what came growAfter later.
	refusedSince time.Time
	refused      int

	interval, most time.Duration // the first and the longest time between two polls
	every          time.Duration // the current time between two polls
	pollAt         time.Time
}

// NewSleeper returns a sleeper that polls every interval, with a doorbell or without one. Without one, and while the
// polls find nothing, the interval doubles up to most.
func NewSleeper(now time.Time, random backoff.Random, bell bool, interval, most time.Duration) Sleeper {
	return Sleeper{
		random: random, bell: bell, interval: interval, most: most, every: interval, pollAt: now.Add(random.Within(interval)),
	}
}

// PollAt is when it is time for a poll; OnPoll follows.
func (s *Sleeper) PollAt() time.Time { return s.pollAt }

// Request is the number of the latest request to the doorbell.
func (s *Sleeper) Request() int { return s.request }

// IsAsleep reports whether the latest request to the doorbell was to watch.
func (s *Sleeper) IsAsleep() bool { return s.asleep }

// IsAsking reports whether that request has not been answered.
func (s *Sleeper) IsAsking() bool { return s.pending }

// OnRing records a ring: the owner checks for events. Unless it is known that some process still watches, the one that did
// may have rung because it stopped, so the next Idle sends a new request to the doorbell.
func (s *Sleeper) OnRing(watched bool) { s.watched = s.watched && watched }

// OnPoll records a poll: the owner checks for events, and not again before rest has passed. The process that watched
// may have been killed, so the next Idle sends a new request to the doorbell.
func (s *Sleeper) OnPoll(now time.Time, rest time.Duration) {
	s.watched = false
	if !s.bell {
		s.every = min(2*s.every, s.most) // until something is found
	}
	s.pollAt = now.Add(max(s.random.Within(s.every), rest))
}

// OnAnswer records an answer of the doorbell. If look is set, the owner waits for pause and then checks once more.
// If some process watches, this check misses nothing. If none does, the check replaces the missing ring. After Awaits, the
// owner does not wait with what rings; and then it asks again.
func (s *Sleeper) OnAnswer(now time.Time, request int, bell Bell) (look bool, pause time.Duration) {
	if request != s.request && bell != Gone {
		return false, 0 // the answer to an earlier request
	}
	s.pending, s.watched = false, bell == Watches || bell == Awaits
	switch bell {
	case Busy:
	case Awaits:
		s.endRefusals()
		return true, 20*time.Millisecond + s.random.UpTo(10*time.Millisecond)
	default:
		s.endRefusals()
		return true, 0
	}
	// The pause is short, because it is the latency of an event in the open transaction. It grows when the checks have
	// Found nothing for a while, because that transaction may stay open for hours.
	if s.refusedSince.IsZero() {
		s.refusedSince = now
	}
	if now.Sub(s.refusedSince) < growAfter {
		return true, time.Millisecond + s.random.UpTo(2*time.Millisecond)
	}
	s.refused++
	return true, s.random.Delay(4*time.Millisecond, 25*time.Millisecond, s.refused)
}

// growAfter is how long checks must have found nothing before the pauses between them grow.
const growAfter = time.Second

func (s *Sleeper) endRefusals() { s.refused, s.refusedSince = 0, time.Time{} }

// DelayPoll delays the next poll until at least d from now.
func (s *Sleeper) DelayPoll(now time.Time, d time.Duration) {
	if at := now.Add(d); s.pollAt.Before(at) {
		s.pollAt = at
	}
}

// Found records that a check has found something: polls are frequent again, and pauses short.
func (s *Sleeper) Found(now time.Time) {
	s.endRefusals()
	if s.every > s.interval {
		s.every = s.interval
		s.pollAt = now.Add(s.random.Within(s.every))
	}
}

// Idle records that there is nothing to do. It returns true if the owner may sleep, because an enqueue will wake it
// or because it polls. Otherwise the doorbell has to answer first; asks says that it is to be asked.
func (s *Sleeper) Idle() (may, asks bool) {
	if !s.bell || s.watched {
		return true, false
	}
	if s.pending {
		return false, false
	}
	s.asleep, s.pending = true, true
	s.request++
	return false, true
}

// Busy records that there is something to do: enqueues need not ring. tells says that the doorbell is to be told.
func (s *Sleeper) Busy() (tells bool) {
	if !s.asleep {
		return false
	}
	s.asleep, s.pending, s.watched = false, false, false
	s.request++
	return true
}
