package doorbell

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/backoff"
	"github.com/outboxgen/outboxgen/internal/dbschema"
)

// Sleeper tells its owner, who looks for events, when to look again: when an enqueue rings the doorbell, or after a while.
// One goroutine owns it.
type Sleeper struct {
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

// Config says what a sleeper listens to.
type Config struct {
	Bell         Bell
	DB           *dbschema.Schema
	Main, Listen *pgxpool.Pool // the database on which producers ring; makes the connection that listens, main if it is nil
	Log          *slog.Logger
}

// NewSleeper returns a sleeper that polls every interval and hears with e, or, if e is nil, polls less and less often while
// it finds nothing, down to every most.
func NewSleeper(e *Config, interval, most time.Duration) *Sleeper {
	s := &Sleeper{interval: interval, most: most, pollEvery: interval, poll: time.NewTimer(0)}
	if e != nil {
		s.bell = newDoorbell(e)
	}
	s.pollIn(backoff.Within(interval))
	return s
}

// Run hears until ctx ends, and gives up the lock while dbCtx lasts. It returns immediately when there is nothing to
// hear.
func (s *Sleeper) Run(ctx, dbCtx context.Context) {
	if s.bell != nil {
		s.bell.run(ctx, dbCtx)
	}
}

// Stop ends the polls.
func (s *Sleeper) Stop() { s.poll.Stop() }

// Polls receives when it is time for a poll; OnPoll follows.
func (s *Sleeper) Polls() <-chan time.Time { return s.poll.C }

// IsAsleep reports whether the latest request to the doorbell is to watch.
func (s *Sleeper) IsAsleep() bool { return s.asleep }

func (s *Sleeper) pollIn(d time.Duration) {
	s.due = time.Now().Add(d)
	s.poll.Reset(d)
}

// Rang receives when an enqueue has rung; OnRing follows.
func (s *Sleeper) Rang() <-chan struct{} {
	if s.bell == nil {
		return nil
	}
	return s.bell.rang
}

// Answers receives what the doorbell answers; OnAnswer follows.
func (s *Sleeper) Answers() <-chan Answer {
	if s.bell == nil {
		return nil
	}
	return s.bell.answers
}

// OnRing notes a ring: the owner looks. Who watched may have rung because it stopped, so the doorbell is asked again.
func (s *Sleeper) OnRing() { s.watched = false }

// OnPoll notes that the timer has fired: the owner looks, and not again before rest has passed. Who watched may have been
// killed, so the doorbell is asked again.
func (s *Sleeper) OnPoll(rest time.Duration) {
	s.watched = false
	if s.bell == nil {
		s.pollEvery = min(2*s.pollEvery, s.most) // until something is found
	}
	s.pollIn(max(backoff.Within(s.pollEvery), rest))
}

// OnAnswer notes an answer of the doorbell. If look is set the owner looks once more, now that nothing can be missed, or,
// while nobody watches, because nothing must be; it waits for pause before that.
func (s *Sleeper) OnAnswer(a Answer) (look bool, pause time.Duration) {
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

// Rest keeps the next poll at least d away.
func (s *Sleeper) Rest(d time.Duration) {
	if time.Until(s.due) < d {
		s.pollIn(d)
	}
}

// Found notes that a look has found something: polls are frequent again.
func (s *Sleeper) Found() {
	if s.pollEvery > s.interval {
		s.pollEvery = s.interval
		s.pollIn(backoff.Within(s.pollEvery))
	}
}

// Idle notes that there is nothing to do. It returns true when the owner may sleep: an enqueue will wake it, or it polls.
// Else it asks the doorbell, whose answer follows.
func (s *Sleeper) Idle() bool {
	if s.bell == nil || s.watched {
		return true
	}
	if !s.pending {
		s.asleep, s.pending = true, true
		s.request = s.bell.setRequest(asleep)
	}
	return false
}

// Busy notes that there is something to do, or that no enqueue would matter: enqueues need not ring.
func (s *Sleeper) Busy() {
	if s.asleep {
		s.asleep, s.pending, s.watched = false, false, false
		s.request = s.bell.setRequest(awake)
	}
}

// Pace measures looks that find nothing. What one costs may grow with what others have not committed, so a pause of four
// times as long keeps an idle owner from more than a fifth of a backend's time.
type Pace struct {
	began        time.Time
	latest, then time.Duration
}

// pauseFactor is how many times as long as a look the pause after it is at least.
const pauseFactor = 4

// Start begins a look.
func (p *Pace) Start() { p.began = time.Now() }

// Stop ends a look that has found nothing.
func (p *Pace) Stop() { p.Took(time.Since(p.began)) }

// Took notes a look that has found nothing.
func (p *Pace) Took(d time.Duration) { p.latest, p.then = d, p.latest }

// Pause is how long to wait before the next look, unless the doorbell rings. Of two looks the shorter one counts: one that
// had to wait for the database once says nothing about the next.
func (p *Pace) Pause() time.Duration { return pauseFactor * min(p.latest, p.then) }
