package doorbell

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// Sleeper is a sleep.Sleeper with a clock, a timer and a doorbell. One goroutine owns it.
type Sleeper struct {
	bell    *doorbell // nil when polling
	sleeper sleep.Sleeper
	poll    *time.Timer
}

// Config holds the doorbell of a sleeper.
type Config struct {
	Bell bell.Bell
	DB   *schemadb.Schema
	// producers ring on the database of Main; Listen makes the listening connection, and Main does if it is nil. Only a
	// connection of Main is lent to the owner, which returns every Loan.
	Main, Listen *pgxpool.Pool
	Log          *slog.Logger
	// Listening is told the results of attempts to listen, except the first failure after a success: a connection that is
	// lost once costs nothing.
	Listening func(began time.Time, err error)
}

// NewSleeper returns a sleeper that uses the doorbell of e and polls every interval. If e is nil, there is no doorbell,
// and while the polls find nothing the interval doubles up to most.
func NewSleeper(e *Config, interval, most time.Duration) *Sleeper {
	s := &Sleeper{sleeper: sleep.NewSleeper(time.Now(), nil, e != nil, interval, most), poll: time.NewTimer(0)}
	if e != nil {
		s.bell = newDoorbell(e)
	}
	s.setTimer()
	return s
}

// setTimer makes Polls receive when it is time for a poll.
func (s *Sleeper) setTimer() { s.poll.Reset(time.Until(s.sleeper.PollAt())) }

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
func (s *Sleeper) IsAsleep() bool { return s.sleeper.IsAsleep() }

// Rang receives when somebody has rung; OnRing follows.
func (s *Sleeper) Rang() <-chan Ring {
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

// OnRing is sleep.Sleeper.OnRing.
func (s *Sleeper) OnRing(r Ring) { s.sleeper.OnRing(r.Watched()) }

// OnPoll is sleep.Sleeper.OnPoll now.
func (s *Sleeper) OnPoll(rest time.Duration) {
	s.sleeper.OnPoll(time.Now(), rest)
	s.setTimer()
}

// OnAnswer is sleep.Sleeper.OnAnswer now.
func (s *Sleeper) OnAnswer(a Answer) (look bool, pause time.Duration) {
	return s.sleeper.OnAnswer(time.Now(), a.request, a.state)
}

// Rest delays the next poll until at least d from now.
func (s *Sleeper) Rest(d time.Duration) {
	s.sleeper.DelayPoll(time.Now(), d)
	s.setTimer()
}

// Found records that a check has found something: polls are frequent again, and pauses short.
func (s *Sleeper) Found() {
	s.sleeper.Found(time.Now())
	s.setTimer()
}

// Idle records that there is nothing to do. It returns true if the owner may sleep, because an enqueue will wake it or
// because it polls. Otherwise it sends a request to the doorbell, whose answer follows.
func (s *Sleeper) Idle() bool {
	may, asks := s.sleeper.Idle()
	if asks {
		s.bell.setRequest(asleep)
	}
	return may
}

// Busy records that there is something to do, or that no enqueue would give the owner work: enqueues need not ring.
func (s *Sleeper) Busy() {
	if s.sleeper.Busy() {
		s.bell.setRequest(awake)
	}
}

// Pace is a sleep.Pace of an owner that has a clock.
type Pace struct{ sleep.Pace }

// Start begins a check.
func (p *Pace) Start() { p.Pace.Start(time.Now()) }

// Stop ends a check that has found nothing.
func (p *Pace) Stop() { p.Pace.Stop(time.Now()) }
