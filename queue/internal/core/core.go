// Package core decides what a dispatcher does: what it claims, starts, settles, renews and waits for. It is a value
// without goroutines, channels, locks and clock. A shell tells it what has happened and when, and does what it returns.
//
// What a dispatcher does in which state is in docs/inside/states.md, which a test draws from running this package.
package core

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/growth"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
)

// Config is what a Core is to do. The figures are those of queue.Config, with their defaults.
type Config struct {
	Topics  []Topic   // those that are claimed
	Targets []*Target // of all topics, each once
	Pauses  *Pauses   // what is paused at the start

	BatchSize, Concurrency                       int  // BatchSize is at least the size of the largest batch
	Grows                                        bool // BatchSize grows for events that are published or have turns, while they are fast
	Ahead                                        int  // how many events may wait for a handler to return
	LeaseDuration, PollInterval, MaxPollInterval time.Duration
	LastAttemptLimit                             time.Duration // how long an event that may kill its process stops claims

	Doorbell bool // enqueues wake the dispatcher
	Alone    bool // it claims only some topics or tenants, so no other process may want the events for which it is woken
	Drain    bool // it ends when nothing is due
	Limit    int  // a drain ends when it has claimed so many events; 0 means any number
	// FirstPause is the pause of a target after its first failure, and WaitPause that of an event for which something that
	// it alone needs is not there.
	FirstPause, WaitPause time.Duration
	// Random spreads pauses and polls.
	Random backoff.Random
}

// Topic is a topic that is claimed, under one of its names.
type Topic struct {
	Name   string
	Target *Target
	Turns  bool // its events have turns
	Limits bool // no event is claimed before it has one
	Apart  bool // no limit counts events of two turns, as without limits
}

// lanes returns the lanes of the events that are claimed.
func (cfg *Config) lanes() []int32 {
	var names []string
	for i := range cfg.Topics {
		if !cfg.Topics[i].Limits {
			names = append(names, cfg.Topics[i].Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return LanesOf(names)
}

// MaxPasses is how many passes may be under way: one that PostgreSQL works on, and one that waits for its commit.
const MaxPasses = 2

// Core is the state of one run or drain of a dispatcher. Only one goroutine may use it.
type Core struct {
	cfg        Config
	out        []Command
	targetOf   map[string]*Target    // by topic
	ownTargets map[*rest.Target]bool // those of cfg.Targets and their brokers
	outMemory  []Command             // of the latest step, to be used again

	leases
	batching
	sleeper  sleep.Sleeper
	ready    []*Task      // handlers wait for them
	fair     fairQueue    // and for these, which have turns
	rated    rated        // and for these, of limited rate
	lines    []activeLine // destinations that events are on their way to
	running  int          // handlers, and what waits for one of them to return
	inFlight int          // claimed and not known to be settled
	finished []*Task
	// capacity is how many may be in flight, not counting those of stalled publishers and one per resting target to try
	// it.
	capacity  int
	growth    growth.Growth
	relays    bool             // it publishes the events of some topics
	without   map[*Target]bool // targets that a try has found without an event, while others of their broker are tried
	lapsed    bool             // something has lost its lease that may not have begun
	recalling bool             // Recalled follows

	stopping     bool // nothing is started any more
	givenUp      bool // nobody waits for handlers
	databaseOver bool
	ended        bool

	lastAttempt        *Task     // a reclaimed event on its last attempt, which is run alone if possible
	lastAttemptStarted bool      // it is ready or running
	lastAttemptSince   time.Time // when it was claimed, then when it was made ready

	passes      []*Pass   // under way
	reclaiming  bool      // one of them may reclaim events
	settling    int       // events that they settle
	claiming    int       // events that they may claim
	reserved    int       // the room they need for those, in addition to what they settle in the same transaction
	failures    int       // of the database, in a row
	pausedUntil time.Time // no pass begins before
	emptyClaims sleep.Pace
	settleErr   error     // why finished could not be settled
	reclaimFrom time.Time // after an outage: the time when other processes have settled what they have in flight

	rung       bool      // the doorbell, since the latest claim began
	owesLook   bool      // it has rung, and what rang may have been committed behind the main walk
	missed     int       // claims after rings that have found nothing, less those that have found something
	leftUntil  time.Time // until when what has rung is left to another process; zero if nothing is
	askAt      time.Time // when to check and ask the doorbell again, because it awaits the lock; zero if it does not
	found      int       // events since foundSince, to find out whether enqueues need to ring
	foundSince time.Time // less than fewWithin before the latest of them

	claimable  bool // there may be something to claim
	generation int  // how often something has made it claimable
	backlog    bool // the latest claim was full
	tight      bool // there is little room, and enough events wait for the workers
	claims     *claims
	looks      looks
	turns      *turns

	pauses         *Pauses   // what is paused, as it was read last
	pausesAt       time.Time // when to read it again
	readingPauses  bool
	pausesBegan    time.Time // of the reading
	pausesAgain    bool      // something may have changed since the reading began
	pausesOwed     bool      // a wake-up or a listing waits for a reading that succeeds
	pausesFailures int
	pausesPace     sleep.Pace

	drained map[*Target]bool // the resting targets of which a drain has tried an event
	handled int              // events that a drain has claimed
	draining
	timerAt time.Time // of the latest Timer
}

// New returns the core of a run that begins at now.
func New(now time.Time, cfg Config) *Core {
	batching := newBatching(&cfg)
	c := &Core{
		cfg: cfg, targetOf: make(map[string]*Target, len(cfg.Topics)), ownTargets: make(map[*rest.Target]bool),
		leases: leases{lease: cfg.LeaseDuration}, batching: batching,
		sleeper:  sleep.NewSleeper(now, cfg.Random, cfg.Doorbell, cfg.PollInterval, cfg.MaxPollInterval),
		without:  map[*Target]bool{},
		capacity: max(cfg.BatchSize, cfg.Concurrency), claimable: true, claims: newClaims(&cfg, cfg.Pauses),
		looks: looks{wanted: true, walk: NewWalk(cfg.lanes())}, pauses: cfg.Pauses, drained: make(map[*Target]bool),
	}
	names, active := make([]string, 0, len(cfg.Topics)), false
	for _, t := range cfg.Topics {
		c.targetOf[t.Name] = t.Target
		names, active = append(names, t.Name), active || t.Turns
	}
	c.turns = newTurns(TurnLanesOf(names), active)
	c.growth, c.relays = growthOf(&cfg, c.capacity)
	c.turns.took(0)
	for _, t := range cfg.Topics {
		if !t.Apart {
			c.turns.shared[topiclane.OfTurns(t.Name)] = true
		}
	}
	if c.turns.stray = now.Add(strayEvery); cfg.Drain {
		c.turns.begin()
	}
	c.claims.turns = c.turns
	for _, t := range cfg.Targets {
		t.reset()
		if c.ownTargets[t.Rest] = true; t.Rest.Broker != nil {
			c.ownTargets[t.Rest.Broker] = true
		}
	}
	c.planPauses(now)
	return c
}

func (c *Core) do(cmd Command) { c.out = append(c.out, cmd) }

// Step takes what happened at now and returns what to do, in order. The slice is valid until the next Step. After End
// there is nothing to do any more.
func (c *Core) Step(now time.Time, in Event) []Command {
	c.out = c.outMemory[:0]
	if c.ended {
		return nil
	}
	if !now.Before(c.timerAt) {
		c.timerAt = time.Time{} // it has fired
	}
	switch e := in.(type) {
	case Tick:
		c.timerAt = time.Time{}
	case *Reported:
		c.onReported(now, e)
	case *BatchReported:
		c.onBatchReported(now, e)
	case *Sent:
		c.onSent(now, e)
	case *Routed:
		c.onRouted(now, e)
	case *Recalled:
		c.onRecalled(now, e)
	case *PassDone:
		c.onPassDone(now, e)
	case *Renewed:
		c.onRenewed(now, e)
	case *PausesRead:
		c.onPausesRead(now, e)
	case Woken:
		c.onWoken(now, e)
	case Answered:
		c.onAnswered(now, e)
	case Listed:
		c.askForPauses(now)
	case Swept:
		c.onSwept(e)
	case Stop:
		c.onStop(now)
	case GiveUp:
		c.givenUp = true
	case DatabaseOver:
		c.databaseOver, c.pausedUntil = true, time.Time{}
	}
	c.onTime(now)
	c.proceed(now)
	if at := c.nextTime(now); !c.ended && !at.Equal(c.timerAt) {
		c.timerAt = at
		c.do(Timer{at})
	}
	c.outMemory = c.out
	return c.out
}

// onTime does what is due at now whatever happens.
func (c *Core) onTime(now time.Time) {
	c.renew(now)
	c.turns.onTime(now)
	if c.lapsed {
		c.lapsed = false
		c.withdraw(now)
	}
	c.expire(now)
	if c.stopping || c.cfg.Drain {
		return
	}
	if !c.readingPauses && !now.Before(c.pausesAt) {
		c.readPauses(now)
	}
	if !c.leftUntil.IsZero() && !now.Before(c.leftUntil) {
		c.followRing()
	}
	if !c.askAt.IsZero() && !now.Before(c.askAt) && c.claiming == 0 {
		c.askAt = time.Time{}
		c.sleeper.OnRing(false)
		c.requestClaim()
	}
	if !now.Before(c.sleeper.PollAt()) {
		switch {
		case c.looks.running: // a look that is slower than its pause is not followed by another without a pause
		case c.claiming > 0: // nor is another claim
			c.looks.soon()
			c.turns.soon()
		default:
			c.requestLook()
		}
		c.sleeper.OnPoll(now, c.emptyClaims.Pause())
	}
}

// proceed starts what can start.
func (c *Core) proceed(now time.Time) {
	c.startLastAttempt(now)
	c.hand(now)
	switch {
	case c.ended:
	case c.stopping:
		c.finishUp(now)
	case c.cfg.Drain:
		c.drain(now)
	default:
		c.deliver(now)
	}
}

// nextTime returns when there is something to do even if nothing happens; zero if there is no such time.
func (c *Core) nextTime(now time.Time) (at time.Time) {
	wait := func(until time.Time) {
		if until.After(now) {
			at = earlier(at, until)
		}
	}
	if len(c.tasks) > 0 && !c.renewing {
		wait(c.renewAt)
	}
	wait(c.pausedUntil)
	wait(c.rated.expires)
	for _, t := range c.batchTargets {
		if len(t.ready) > 0 {
			wait(c.goesAt(t))
		}
	}
	if c.lastAttempt != nil {
		wait(c.lastAttemptSince.Add(c.cfg.LastAttemptLimit))
		wait(c.lastAttemptSince.Add(c.lease))
	}
	if c.stopping {
		return at
	}
	if len(c.passes) < MaxPasses {
		wait(c.nextOfTargets(now))
	}
	if c.cfg.Drain {
		return at
	}
	if !c.readingPauses {
		wait(c.pausesAt)
	}
	if len(c.passes) < MaxPasses && c.looks.wanted {
		wait(c.looks.from)
	}
	if len(c.passes) < MaxPasses {
		wait(c.turns.next(now))
	}
	wait(c.leftUntil)
	wait(c.askAt)
	wait(c.sleeper.PollAt())
	return at
}

// AtRisk returns the events in flight whose lease may have run out. No sweep of this process takes them.
func (c *Core) AtRisk(now time.Time) []uuid.UUID { return c.atRisk(now) }

// Holds reports whether the leases of all of tasks, which run, are held.
func (c *Core) Holds(now time.Time, tasks []*Task) bool {
	return !slices.ContainsFunc(tasks, func(t *Task) bool { return t.lost || c.leases.over(t, now) })
}

// onReported takes in the results of tasks for which nothing runs any more.
func (c *Core) onReported(now time.Time, e *Reported) {
	for _, t := range e.Tasks {
		c.turns.opened(t.Opened)
		if !t.to.sends() {
			c.running--
		}
		if t.Ended {
			c.releaseExpired(now, t)
			continue
		}
		if t.Late {
			if !t.lost {
				c.lose(t)
			}
			t.unstarted = true
		}
		if t.Tried && !t.to.sends() {
			ids, results := [1]uuid.UUID{t.ID}, [1]errclass.Result{t.Result}
			c.tellRests(t.to.Rest.OnResults(now, t.Began, ids[:], results[:]))
			t.Result = results[0]
		}
		c.report(now, t)
	}
}

// report makes t finished: one whose result is known, or that is released unstarted.
func (c *Core) report(now time.Time, t *Task) {
	if t.to.sends() {
		t.to.inFlight--
	}
	if t.line != nil {
		c.removeFromLine(now, t)
	}
	if !t.Tried || t.Ended {
		t.notBegun()
	}
	c.left(t)
	if t.try != nil {
		t.try.Rest.OnTry(now, true)
	}
	if t == c.lastAttempt {
		c.lastAttempt, c.lastAttemptStarted = nil, false
	}
	t.finished = true
	// A failure is not settled if the lease was lost, because the event may belong to another worker then. A success, and
	// an event that is released with its attempt uncounted, are settled anyway: the fence decides.
	if t.unstarted || !t.lost || !t.Result.Class.Charged() {
		c.finished = append(c.finished, t)
		return
	}
	c.remove(t)
	c.inFlight--
	c.do(Drop{t})
}

// releaseUnstarted makes the next pass release t, which was not started. Its result may say what it waits for.
func (c *Core) releaseUnstarted(now time.Time, t *Task) {
	if t.unstarted = true; !t.Result.Waits {
		t.Result = notStarted
	}
	c.report(now, t)
}

// gone reports whether t must not begin any more.
func (c *Core) gone(t *Task) bool { return c.stopping || t.lost || c.pauses.Event(t.Topic, t.Tenant) }

// recall asks for what waits for a worker.
func (c *Core) recall() {
	if c.running > c.cfg.Concurrency && !c.recalling {
		c.recalling = true
		c.do(Recall{})
	}
}

// onRecalled makes tasks that no worker has begun wait here again.
func (c *Core) onRecalled(now time.Time, e *Recalled) {
	c.recalling = false
	for _, t := range e.Tasks {
		t.notBegun()
		c.running--
	}
	plain, rated := e.Tasks[:0:0], e.Tasks[:0:0]
	for _, t := range e.Tasks {
		if t.limitedRate() {
			rated = append(rated, t)
		} else {
			plain = append(plain, t)
		}
	}
	c.ready, c.rated.tasks = append(plain, c.ready...), append(rated, c.rated.tasks...)
	for _, b := range slices.Backward(e.Batches) {
		c.takeBack(b)
	}
	c.release(now, &c.ready)
	c.release(now, &c.rated.tasks)
	for _, t := range c.batchTargets {
		c.release(now, &t.again)
		c.release(now, &t.ready)
	}
}

// notBegun records that no worker has begun t.
func (t *Task) notBegun() {
	if t.begun = false; t.admitted {
		t.admitted = false
		t.to.Rest.Untried()
	}
}

// withdraw takes back what has not begun and is gone, for example because its lease was lost while it waited. Each is
// released under its fence, so its attempt is not counted unless another worker has claimed it since.
func (c *Core) withdraw(now time.Time) {
	c.recall()
	if t := c.lastAttempt; t != nil && !c.lastAttemptStarted && c.gone(t) {
		c.releaseUnstarted(now, t)
	}
	for i := len(c.lines) - 1; i >= 0; i-- { // backwards: one that becomes empty is removed
		c.release(now, &c.lines[i].ready)
	}
	for _, t := range c.cfg.Targets {
		c.release(now, &t.again)
		c.release(now, &t.ready)
	}
	c.release(now, &c.ready)
	c.release(now, &c.rated.tasks)
	c.release(now, (*[]*Task)(&c.fair.tasks))
	c.fair.restore()
}

// release releases what is gone or expired of a queue.
func (c *Core) release(now time.Time, queue *[]*Task) {
	var kept, released []*Task
	for _, t := range *queue {
		if c.gone(t) || t.expired(now) {
			released = append(released, t)
		} else {
			kept = append(kept, t)
		}
	}
	*queue = kept
	for _, t := range released {
		c.releaseExpired(now, t)
	}
}

// releaseExpired is releaseUnstarted of an event that has waited here, perhaps for so long that its rate does not allow it to
// begin any more.
func (c *Core) releaseExpired(now time.Time, t *Task) {
	if t.expired(now) {
		c.turns.ahead.missed(now)
	}
	c.releaseUnstarted(now, t)
}

// startLastAttempt makes the pending event on its last attempt ready once nothing else is in flight. This event may
// have killed its process before. If it does so again, every other event in flight loses an attempt. The wait for long
// handlers is bounded: by LastAttemptLimit if they would lose one attempt of several, and by a lease if one of them
// would become a dead letter.
func (c *Core) startLastAttempt(now time.Time) {
	t := c.lastAttempt
	if t == nil || c.lastAttemptStarted {
		return
	}
	waited := now.Sub(c.lastAttemptSince)
	alone := c.inFlight == 1 && c.claiming == 0
	if alone || waited >= c.lease || waited >= c.cfg.LastAttemptLimit && !c.hasLastAttempt(t) {
		c.lastAttemptStarted, c.lastAttemptSince = true, now
		c.start(t)
	}
}

// claimsPaused reports whether an event on its last attempt stops other claims. It does so for LastAttemptLimit while
// it waits for the others to finish, and again after its start, because an event that kills its process usually does so
// soon.
func (c *Core) claimsPaused(now time.Time) bool {
	return c.lastAttempt != nil && now.Sub(c.lastAttemptSince) < c.cfg.LastAttemptLimit
}

// requestClaim makes the dispatcher claim once more, whatever the current claims find.
func (c *Core) requestClaim() {
	c.claimable = true
	c.generation++
	c.turns.wake()
}

// requestLook makes the dispatcher claim once more, and look from the head soon.
func (c *Core) requestLook() {
	c.looks.soon()
	c.turns.soon()
	c.requestClaim()
}

// onWoken takes in a ring: an event may have been enqueued, and a resume rings, too.
func (c *Core) onWoken(now time.Time, e Woken) {
	if c.sleeper.OnRing(e.Watched); e.Left && c.missed >= manyMissed && !c.cfg.Alone {
		if c.leftUntil.IsZero() {
			c.leftUntil = now.Add(leftFor)
		}
		return
	}
	if c.pauses.Any() {
		c.askForPauses(now)
	}
	c.followRing()
}

// followRing makes the dispatcher claim what has rung.
func (c *Core) followRing() {
	c.leftUntil = time.Time{}
	c.requestClaim()
	c.rung, c.owesLook = true, true
}

const (
	// An enqueue wakes all processes of the namespace, and one of them gets the event. While so many more claims after a
	// ring have found nothing than something, this process leaves events for so long to the one that holds the doorbell. If
	// that one has no room for them, or does not want them, this one finds them soon, again and again, and then claims at
	// once.
	manyMissed = 8
	leftFor    = 10 * time.Millisecond
)

// onAnswered takes in an answer of the doorbell: the dispatcher claims once more, immediately or after a pause.
func (c *Core) onAnswered(now time.Time, a Answered) {
	look, pause := c.sleeper.OnAnswer(now, a.Request, a.Bell)
	switch {
	case look && a.Bell == sleep.Awaits: // what rings is followed meanwhile
		c.askAt = now.Add(max(pause, c.emptyClaims.Pause()))
		c.do(SignalRefused)
	case look && pause == 0: // what was committed before this answer rang nobody
		c.requestLook()
	case look:
		c.requestClaim()
		c.pausedUntil = later(c.pausedUntil, now.Add(max(pause, c.emptyClaims.Pause())))
		c.do(SignalRefused)
	}
}

const (
	// shortestPauseCheck is the time between two readings of the pauses when PollInterval is shorter.
	shortestPauseCheck = 50 * time.Millisecond
)

// planPauses says when to read what is paused next.
func (c *Core) planPauses(now time.Time) {
	c.pausesAt = now.Add(max(c.cfg.Random.Within(c.cfg.PollInterval), shortestPauseCheck, c.pausesPace.Pause()))
}

// askForPauses reads what is paused once more, after the reading that is under way.
func (c *Core) askForPauses(now time.Time) {
	c.pausesOwed = true
	if c.pausesAgain = c.readingPauses; !c.readingPauses {
		c.pausesAt = now
	}
}

func (c *Core) readPauses(now time.Time) {
	c.readingPauses, c.pausesAgain, c.pausesBegan = true, false, now
	c.do(ReadPauses{})
}

// onPausesRead takes in what is paused now: queued events that are paused now are released, and what is not paused any
// more is claimed again. After an error, what was read last holds. If a ring or a listing has asked for the reading, it
// is tried again soon: perhaps nobody tells of the end of that pause again.
func (c *Core) onPausesRead(now time.Time, e *PausesRead) {
	c.readingPauses = false
	c.pausesPace.Took(now.Sub(c.pausesBegan))
	c.planPauses(now)
	switch {
	case e.Err != nil:
		if c.pausesFailures++; c.pausesOwed {
			c.pausesAt = now.Add(c.cfg.Random.Retry(c.pausesFailures))
		}
	case c.pausesAgain:
		c.pausesFailures, c.pausesAt = 0, now
	default:
		c.pausesFailures, c.pausesOwed = 0, false
	}
	if e.Err == nil && !e.Pauses.Equal(c.pauses) {
		c.pauses = e.Pauses
		c.withdraw(now)
		c.requestLook() // a claim that is under way may pass over what it still takes for paused
	}
	c.do(SignalPaused)
}
