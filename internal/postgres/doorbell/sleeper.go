package doorbell

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// Sleeper decides when its owner checks for events again: when an enqueue rings the doorbell, or after a poll interval.
// One goroutine owns it.
type Sleeper struct {
	bell    *doorbell // nil when polling
	asleep  bool      // the latest request to the doorbell was to watch
	pending bool      // that request has not been answered
	watched bool      // the answer was that some process watches
	request int       // number of the latest request

	// refusedSince is the first time in a row that no process could watch, because an enqueue was under way, and that no
	// check has found something since. It is zero if there is none. refused counts what came growAfter later.
	refusedSince time.Time
	refused      int

	interval, most time.Duration // the first and the longest time between two polls
	pollEvery      time.Duration // the current time between two polls
	poll           *time.Timer
	due            time.Time // when poll fires
}

// Config holds the doorbell of a sleeper.
type Config struct {
	Bell Bell
	DB   *schemadb.Schema
	// producers ring on the database of Main; Listen makes the listening connection, and Main does if it is nil
	Main, Listen *pgxpool.Pool
	Log          *slog.Logger
	// Listening is told the results of attempts to listen, except the first failure after a success: a connection that is
	// lost once costs nothing.
	Listening func(began time.Time, err error)
}

// NewSleeper returns a sleeper that uses the doorbell of e and polls every interval. If e is nil, there is no doorbell,
// and while the polls find nothing the interval doubles up to most.
func NewSleeper(e *Config, interval, most time.Duration) *Sleeper {
	s := &Sleeper{interval: interval, most: most, pollEvery: interval, poll: time.NewTimer(0)}
	if e != nil {
		s.bell = newDoorbell(e)
	}
	s.pollIn(backoff.Within(interval))
	return s
}

// Run listens until ctx ends, and then gives up the lock, for which dbCtx bounds the time. Without a doorbell it
// returns immediately.
func (s *Sleeper) Run(ctx, dbCtx context.Context) {
	if s.bell != nil {
		s.bell.run(ctx, dbCtx)
	}
}

// Stop ends the polls.
func (s *Sleeper) Stop() { s.poll.Stop() }

// Polls receives when it is time for a poll; OnPoll follows.
func (s *Sleeper) Polls() <-chan time.Time { return s.poll.C }

// IsAsleep reports whether the latest request to the doorbell was to watch.
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

// Answers receives the answers of the doorbell; OnAnswer follows.
func (s *Sleeper) Answers() <-chan Answer {
	if s.bell == nil {
		return nil
	}
	return s.bell.answers
}

// OnRing records a ring: the owner checks for events. The process that watched may have rung because it stopped, so the
// next Idle sends a new request to the doorbell.
func (s *Sleeper) OnRing() { s.watched = false }

// OnPoll records that the timer has fired: the owner checks for events, and not again before rest has passed. The
// process that watched may have been killed, so the next Idle sends a new request to the doorbell.
func (s *Sleeper) OnPoll(rest time.Duration) {
	s.watched = false
	if s.bell == nil {
		s.pollEvery = min(2*s.pollEvery, s.most) // until something is found
	}
	s.pollIn(max(backoff.Within(s.pollEvery), rest))
}

// OnAnswer records an answer of the doorbell. If look is set, the owner waits for pause and then checks once more. If
// some process watches, this check misses nothing. If none does, the check replaces the missing ring.
func (s *Sleeper) OnAnswer(a Answer) (look bool, pause time.Duration) {
	if a.request != s.request && a.state != bellGone {
		return false, 0 // the answer to an earlier request
	}
	s.pending, s.watched = false, a.state == bellWatches
	if a.state != bellBusy {
		s.endRefusals()
		return true, 0
	}
	// The pause is short, because it is the latency of an event in the open transaction. It grows when the checks have
	// found nothing for a while, because that transaction may stay open for hours.
	if s.refusedSince.IsZero() {
		s.refusedSince = time.Now()
	}
	if time.Since(s.refusedSince) < growAfter {
		return true, time.Millisecond + backoff.UpTo(2*time.Millisecond)
	}
	s.refused++
	return true, backoff.Delay(4*time.Millisecond, 25*time.Millisecond, s.refused)
}

// growAfter is how long checks must have found nothing before the pauses between them grow.
const growAfter = time.Second

func (s *Sleeper) endRefusals() { s.refused, s.refusedSince = 0, time.Time{} }

// Rest delays the next poll until at least d from now.
func (s *Sleeper) Rest(d time.Duration) {
	if time.Until(s.due) < d {
		s.pollIn(d)
	}
}

// Found records that a check has found something: polls are frequent again, and pauses short.
func (s *Sleeper) Found() {
	s.endRefusals()
	if s.pollEvery > s.interval {
		s.pollEvery = s.interval
		s.pollIn(backoff.Within(s.pollEvery))
	}
}

// Idle records that there is nothing to do. It returns true if the owner may sleep, because an enqueue will wake it or
// because it polls. Otherwise it sends a request to the doorbell, whose answer follows.
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

// Busy records that there is something to do, or that no enqueue would give the owner work: enqueues need not ring.
func (s *Sleeper) Busy() {
	if s.asleep {
		s.asleep, s.pending, s.watched = false, false, false
		s.request = s.bell.setRequest(awake)
	}
}

// Pace measures checks that find nothing. The cost of a check may grow with what other transactions have not committed.
// A pause of four times its length limits an idle owner to a fifth of a backend's time.
type Pace struct {
	began        time.Time
	latest, then time.Duration
}

// pauseFactor is the minimum length of a pause, in lengths of the check before it.
const pauseFactor = 4

// Start begins a check.
func (p *Pace) Start() { p.began = time.Now() }

// Stop ends a check that has found nothing.
func (p *Pace) Stop() { p.Took(time.Since(p.began)) }

// Took records a check that has found nothing.
func (p *Pace) Took(d time.Duration) { p.latest, p.then = d, p.latest }

// Pause is how long to wait before the next check, unless the doorbell rings. The shorter of the latest two checks
// counts, because a single check that had to wait for the database says nothing about the next one.
func (p *Pace) Pause() time.Duration { return pauseFactor * min(p.latest, p.then) }
