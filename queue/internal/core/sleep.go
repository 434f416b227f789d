package core

import (
	"time"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
)

// sleeper decides when the dispatcher checks for events again: when an enqueue rings the doorbell, or after a poll
// interval.
type sleeper struct {
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

func newSleeper(now time.Time, cfg *Config) sleeper {
	return sleeper{
		random: cfg.Random, bell: cfg.Doorbell, interval: cfg.PollInterval, most: cfg.MaxPollInterval, every: cfg.PollInterval,
		pollAt: now.Add(cfg.Random.Within(cfg.PollInterval)),
	}
}

// onPoll records a poll: the dispatcher checks for events, and not again before rest has passed. The process that watched
// may have been killed, so the next idle sends a new request to the doorbell.
func (s *sleeper) onPoll(now time.Time, rest time.Duration) {
	s.watched = false
	if !s.bell {
		s.every = min(2*s.every, s.most) // until something is found
	}
	s.pollAt = now.Add(max(s.random.Within(s.every), rest))
}

// onAnswer records an answer of the doorbell. If look is set, the dispatcher waits for pause and then checks once more.
// If some process watches, this check misses nothing. If none does, the check replaces the missing ring.
func (s *sleeper) onAnswer(now time.Time, a Answered) (look bool, pause time.Duration) {
	if a.Request != s.request && a.Bell != BellGone {
		return false, 0 // the answer to an earlier request
	}
	s.pending, s.watched = false, a.Bell == BellWatches
	if a.Bell != BellBusy {
		s.endRefusals()
		return true, 0
	}
	// The pause is short, because it is the latency of an event in the open transaction. It grows when the checks have
	// found nothing for a while, because that transaction may stay open for hours.
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

func (s *sleeper) endRefusals() { s.refused, s.refusedSince = 0, time.Time{} }

// rest delays the next poll until at least d from now.
func (s *sleeper) rest(now time.Time, d time.Duration) { s.pollAt = later(s.pollAt, now.Add(d)) }

// found records that a check has found something: polls are frequent again, and pauses short.
func (s *sleeper) found(now time.Time) {
	s.endRefusals()
	if s.every > s.interval {
		s.every = s.interval
		s.pollAt = now.Add(s.random.Within(s.every))
	}
}

// idle records that there is nothing to do. It returns true if the dispatcher may sleep, because an enqueue will wake it
// or because it polls. Otherwise the doorbell has to answer first; asks says that it is to be asked.
func (s *sleeper) idle() (may, asks bool) {
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

// busy records that there is something to do: enqueues need not ring. tells says that the doorbell is to be told.
func (s *sleeper) busy() (tells bool) {
	if !s.asleep {
		return false
	}
	s.asleep, s.pending, s.watched = false, false, false
	s.request++
	return true
}

// earlier returns the earlier of two times; a zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
