package outbox

import (
	"time"

	"github.com/outboxgen/outboxgen/internal/backoff"
)

// sleeper tells its owner, who looks for events, when to look again: when an enqueue rings the doorbell, or after a while.
// One goroutine owns it.
type sleeper struct {
	bell    *doorbell // nil when polling
	asleep  bool      // the latest request to the doorbell is to watch
	pending bool      // and it has not been answered
	watched bool      // it was answered that somebody watches
	request int       // number of the latest request
	refused int       // times in a row that nobody could watch, because an enqueue was under way

	interval, most time.Duration // between two polls, at first and at most
	pollEvery      time.Duration // from one poll to the next
	poll           *time.Timer
	due            time.Time // when it fires
}

// newSleeper returns a sleeper that polls every interval and listens to bell, or, if bell is nil, polls less and less often
// while it finds nothing, down to every most.
func newSleeper(bell *doorbell, interval, most time.Duration) *sleeper {
	s := &sleeper{bell: bell, interval: interval, most: most, pollEvery: interval, poll: time.NewTimer(0)}
	s.pollIn(backoff.Within(interval))
	return s
}

func (s *sleeper) stop() { s.poll.Stop() }

func (s *sleeper) pollIn(d time.Duration) {
	s.due = time.Now().Add(d)
	s.poll.Reset(d)
}

// rang receives when an enqueue has rung; onRing follows.
func (s *sleeper) rang() <-chan struct{} {
	if s.bell == nil {
		return nil
	}
	return s.bell.rang
}

// answers receives what the doorbell answers; onAnswer follows.
func (s *sleeper) answers() <-chan bellAnswer {
	if s.bell == nil {
		return nil
	}
	return s.bell.answers
}

// onRing notes a ring: the owner looks. Who watched may have rung because it stopped, so the doorbell is asked again.
func (s *sleeper) onRing() { s.watched = false }

// onPoll notes that the timer has fired: the owner looks, and not again before rest has passed. Who watched may have been
// killed, so the doorbell is asked again.
func (s *sleeper) onPoll(rest time.Duration) {
	s.watched = false
	if s.bell == nil {
		s.pollEvery = min(2*s.pollEvery, s.most) // until something is found
	}
	s.pollIn(max(backoff.Within(s.pollEvery), rest))
}

// onAnswer notes an answer of the doorbell. If look is set the owner looks once more, now that nothing can be missed, or,
// while nobody watches, because nothing must be; it waits for pause before that.
func (s *sleeper) onAnswer(a bellAnswer) (look bool, pause time.Duration) {
	if a.request != s.request && a.state != bellGone {
		return false, 0 // to an earlier request
	}
	s.pending, s.watched = false, a.state == bellWatches
	if a.state != bellBusy {
		s.refused = 0
		return true, 0
	}
	// Short, because it is the latency of the event that the open transaction may hold, and growing, because it may stay
	// open for hours.
	s.refused++
	return true, backoff.Delay(2*time.Millisecond, 25*time.Millisecond, s.refused)
}

// rest keeps the next poll at least d away.
func (s *sleeper) rest(d time.Duration) {
	if time.Until(s.due) < d {
		s.pollIn(d)
	}
}

// found notes that a look has found something: polls are frequent again.
func (s *sleeper) found() {
	if s.pollEvery > s.interval {
		s.pollEvery = s.interval
		s.pollIn(backoff.Within(s.pollEvery))
	}
}

// idle notes that there is nothing to do. It returns true when the owner may sleep: an enqueue will wake it, or it polls.
// Else it asks the doorbell, whose answer follows.
func (s *sleeper) idle() bool {
	if s.bell == nil || s.watched {
		return true
	}
	if !s.pending {
		s.asleep, s.pending = true, true
		s.request = s.bell.want(asleep)
	}
	return false
}

// busy notes that there is something to do, or that no enqueue would matter: enqueues need not ring.
func (s *sleeper) busy() {
	if s.asleep {
		s.asleep, s.pending, s.watched = false, false, false
		s.request = s.bell.want(awake)
	}
}

// pace measures looks that find nothing. What one costs may grow with what others have not committed, so a pause of four
// times as long keeps an idle owner from more than a fifth of a backend's time.
type pace struct {
	began        time.Time
	latest, then time.Duration
}

// restful is how many times as long as a look the pause after it is at least.
const restful = 4

// start begins a look.
func (p *pace) start() { p.began = time.Now() }

// stop ends a look that has found nothing.
func (p *pace) stop() { p.took(time.Since(p.began)) }

// took notes a look that has found nothing.
func (p *pace) took(d time.Duration) { p.latest, p.then = d, p.latest }

// pause is how long to wait before the next look, unless the doorbell rings. Of two looks the shorter one counts: one that
// had to wait for the database once says nothing about the next.
func (p *pace) pause() time.Duration { return restful * min(p.latest, p.then) }
