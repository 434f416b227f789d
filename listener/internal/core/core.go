// Package core decides what a shard of a listener does. It does nothing itself: a Core is told what happened and when,
// and answers with what to do. It reads no clock, starts no goroutine and asks no database, so every order of events
// can be tried in a test. Package listener is its shell.
package core

import (
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/machine/growth"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
)

// Config is what a Core knows of its listener. It does not change.
type Config struct {
	Shard, Shards int // of this generation
	BatchSize     int
	LeaseBatches  int // how many batches a lease may have
	// Grows makes batches grow while they are handled fast. It is for listeners that publish.
	Grows         bool
	ParkedKeys    int // and of how many keys it takes parked events
	Transactional bool
	ParkKeys      bool
	Concurrency   int
	MaxAttempts   int
	// Together is how many events are tried together after a crash at first. They become fewer with each further crash, until
	// the one is alone that kills its process. If it is 1 or less, events are tried one by one.
	Together int
	// Batch is how many events a call of a handler of batches gets at most, and Wait how long the first of them waits
	// for others. Batch is 0 if handlers get one event.
	Batch int
	Wait  time.Duration
	// BaseDelay and MaxDelay bound the delays of attempts, FirstPause is that of an event that was not sent, and WaitPause
	// that of one for which something that it alone needs is not there.
	BaseDelay, MaxDelay, FirstPause, WaitPause time.Duration
	LeaseDuration                              time.Duration
	PollInterval                               time.Duration
	// ShutdownTimeout is named in the error that handlers still run.
	ShutdownTimeout time.Duration
	// PauseLimit is the longest pause after an error of the database.
	PauseLimit time.Duration
	// LeaseAge is the maximum age of a lease when a batch begins. So a pause, a change of shards, or a process that
	// requests the shard waits no longer than for one batch of slow handlers.
	LeaseAge time.Duration
	// AheadWithin is how long a batch may take so that a batch is still read ahead while the next one is handled. It is at
	// least half of LeaseAge. An event that was read ahead waits in memory for so long.
	AheadWithin time.Duration
	// TakeOverAfter is how long a shard with events is left to its preferred process.
	TakeOverAfter time.Duration
	// Targets are the targets of all topics, each once.
	Targets []Target
	// KeepHeaders keeps the headers of events that are done, for an observer.
	KeepHeaders bool
	// Drain makes the core end when nothing is due, and at the first error of the database.
	Drain bool
	// Events limits how many handlers are started; 0 means no limit.
	Events int
	// Random is the source of jitter.
	Random backoff.Random
	// NewID makes the ids of leases.
	NewID func() uuid.UUID
}

// State is where a Core is.
type State int

// The states of a Core. It ends in one of the last three.
const (
	Unknown   State = iota // the latest lease of the shard is not known
	Checking               // it reads what the shard waits for
	Sleeping               // it waits for a reason to check
	Pausing                // it waits after an error of the database, or for the rate
	Filling                // it waits for more events, to fill a batch
	Taking                 // it takes a lease
	Handling               // the events of a lease are handled
	Ending                 // it ends a lease, and takes the next one
	Reshaping              // the number of shards has changed, and the new one is read
	Reshaped               // the listener has Shards shards now
	Detached               // the listener does not exist any more
	Stopped
)

var stateNames = [...]string{
	"unknown", "checking", "sleeping", "pausing", "filling", "taking", "handling", "ending", "reshaping", "reshaped",
	"detached", "stopped",
}

func (s State) String() string { return stateNames[s] }

// Core takes leases of one shard until it is told to stop. The state that outlives a lease is in the database, so any
// process can continue from there. A Core is not for concurrent use.
type Core struct {
	cfg   Config
	state State
	err   error // with which it has stopped
	now   time.Time
	out   []Command

	// What it was told, and what it has asked.
	stopping bool
	woken    bool      // there may be something to do that no check has seen
	asked    call      // the call under way
	armed    time.Time // when the shell's timer fires; zero if it does not
	until    time.Time // end of the sleep or pause; zero if only an event ends it

	// Between leases.
	nextID     uuid.UUID  // id of the next lease; kept until that is taken
	repeats    bool       // nextID is a lease that was taken already, and may have ended
	previousID uuid.UUID  // the latest lease that was ended
	afterNo    int64      // the number of the latest lease that it knows of
	scanSize   int        // positions to read
	carried    *NextBatch // the batch that the next lease begins with
	following  *NextBatch // likewise, of the lease that is being taken
	untaken    untaken    // of a shard that is left to another process
	wait       *Wait      // what the shard waited for when it was checked; nil if it was not since the latest lease
	due        time.Time  // when something falls due without an enqueue; zero if nothing does
	newerAt    time.Time  // when the process met an event of an unknown version
	worked     bool       // it had a lease since it slept
	slow       bool       // the latest batch was too slow for another one in its lease
	pace       sleep.Pace
	dbRetry    backoff.Retrier
	urgent     bool // a pause is not ended by Stop, because a lease has yet to be ended
	search     search
	retries    map[int64]Retry // by seq, events that failed here and are not due yet
	budget     *budget         // of handlers that a Drain may start
	growth     growth.Growth   // of batches
	leases     int             // how many had something to do
	filled     bool            // the next lease need not wait for more events
	foundNone  bool            // the latest look for them found nothing
	heldBack   bool            // the latest lease left events to the next one that do not fill a batch
	fillUntil  time.Time       // how long it waits; zero if it does not
	resumes    time.Time       // when the rate allows another attempt

	// Of events of an unknown version.
	newerUntil  time.Time     // until when the shard is left to others
	newerSeq    int64         // the latest such event
	newerTo     uuid.NullUUID // the process to which the shard was given because of it
	wakesOthers bool          // the others do not know of it yet

	// Of the lease that is handled.
	lease      *Lease
	batch      *Batch
	since      time.Time  // when the batch began
	bytes      int        // payload of the events of the log in the batch
	handled    *Handled   // nil until the batch is over
	nextBatch  *NextBatch // what is read meanwhile
	awaitUntil time.Time  // how long to wait for that
	renewAt    time.Time
	renewing   bool
	cancelled  bool // and the renewal was cancelled
	lost       bool // another process has the lease
	carriedOn  bool // it began with a batch that was read ahead
	before     int  // what was left of the budget before the transaction
	newer      *Entry

	// Of the lease that is ended.
	end       *End
	inTx      bool           // in the transaction of the handlers
	tripDone  *RoundTripDone // the answer whose lease waits for what AskLease tells of the end
	reshape   bool           // no lease is taken any more, because the number of shards has changed
	abandoned error          // likewise, because handlers still run although the time to stop is over
	shards    int            // the new number
}

// unknownNo is the number of the latest lease as long as it was not read.
const unknownNo int64 = -1

// untaken records since when a shard that is left to another process has had events and no lease.
type untaken struct {
	leaseNo int64
	since   time.Time // zero if it has none, or there is a lease
}

// call is a call whose answer the core waits for.
type call int

const (
	noCall call = iota
	checkCall
	fillCall
	roundTripCall
	leaseStateCall
	firstCall // ReadFirst
	parkedCall
	tryCall
	chargeCall
	beginCall
	commitCall
	processCall
	reshardCall
	shardsCall
)

// New returns a Core that waits for Started.
func New(cfg Config) *Core {
	c := &Core{cfg: cfg, nextID: cfg.NewID(), afterNo: unknownNo, scanSize: cfg.BatchSize, retries: make(map[int64]Retry)}
	c.dbRetry.Random = cfg.Random
	if cfg.Grows {
		c.growth = growth.Relay(cfg.BatchSize)
		c.growth.Steps = growthSteps
	}
	if cfg.Events > 0 {
		c.budget = &budget{left: cfg.Events}
	}
	return c
}

// State returns where c is.
func (c *Core) State() State { return c.state }

// Over reports whether c has ended, and takes no more events.
func (c *Core) Over() bool { return c.state >= Reshaped }

// Err returns the error with which c has stopped.
func (c *Core) Err() error { return c.err }

// Shards returns the number of shards that c has found, in the state Reshaped.
func (c *Core) Shards() int { return c.shards }

// Leases returns how many leases had something to do.
func (c *Core) Leases() int { return c.leases }

// Left returns how many more handlers may be started, if Config.Events has set a limit.
func (c *Core) Left() int {
	if c.budget == nil {
		return 0
	}
	return c.budget.left
}

// Step takes what happened at now and returns what to do, in order. The commands are valid until the next call.
func (c *Core) Step(now time.Time, in Event) []Command {
	c.now, c.out = now, c.out[:0]
	if c.Over() {
		return nil
	}
	switch in := in.(type) {
	case Started:
		c.goOn()
	case Woken:
		c.onWoken()
	case Tick:
		c.armed = time.Time{}
		c.onTick()
	case Stop:
		c.onStop()
	case GiveUp:
		if c.batch != nil && c.handled == nil {
			c.do(Abandon{c.batch})
		}
	case DatabaseOver:
		if c.state == Pausing {
			c.goOn()
		}
	case Handled:
		c.onHandled(in)
	case Prefetched:
		in.Next.done = true
		c.proceed()
	case Renewed:
		c.onRenewed(in)
	case CommitFailed:
		if c.answers(commitCall) {
			c.onCommitFailed(in)
		}
	case Failed:
		c.onFailed(in)
	default:
		c.onAnswer(in)
	}
	c.arm()
	return c.out
}

// onAnswer takes the answer to the call under way. Any other is ignored.
func (c *Core) onAnswer(in Event) {
	switch in := in.(type) {
	case Checked:
		if c.answers(checkCall) {
			c.onChecked(in)
		}
	case Filled:
		if c.answers(fillCall) {
			c.onFilled(in)
		}
	case RoundTripDone:
		if c.answers(roundTripCall) {
			c.onRoundTripDone(in)
		}
	case LeaseState:
		if c.answers(leaseStateCall) {
			c.onLeaseState(in)
		}
	case Read:
		if c.answers(firstCall) {
			c.onRead()
		}
	case ParkedTaken:
		if c.answers(parkedCall) {
			c.lease.AddParked(&c.cfg, c.now, in.Events)
			c.charge()
		}
	case Tried:
		if c.answers(tryCall) {
			c.onTried(in)
		}
	case Charged:
		if c.answers(chargeCall) {
			c.onCharged(in)
		}
	case Begun:
		if c.answers(beginCall) {
			c.handleFirst()
		}
	case Committed:
		if c.answers(commitCall) {
			c.onCommitted(in)
		}
	case ProcessFound:
		if c.answers(processCall) {
			c.onProcessFound(in)
		}
	case Resharded:
		if c.answers(reshardCall) {
			c.onResharded(in)
		}
	case Registered:
		if c.answers(shardsCall) {
			c.onRegistered(in)
		}
	}
}

// do adds a command.
func (c *Core) do(cmd Command) { c.out = append(c.out, cmd) }

// ask adds a call whose answer it waits for.
func (c *Core) ask(cmd Command, asked call) {
	c.asked = asked
	c.do(cmd)
}

// answers reports whether a call is under way, which is over now.
func (c *Core) answers(asked call) bool {
	is := c.asked == asked
	if is {
		c.asked = noCall
	}
	return is
}

// finish ends c.
func (c *Core) finish(state State, err error) { c.state, c.err, c.until = state, err, time.Time{} }

// arm sets the shell's timer for what c waits for. A timer that is earlier than needed stays: its Tick changes nothing.
func (c *Core) arm() {
	at := c.until
	switch {
	case c.asked != noCall, c.Over():
		return
	case c.state == Handling && c.handled == nil && !c.renewing && !c.lost:
		at = c.renewAt
	case c.nextBatch != nil && !c.nextBatch.dropped:
		at = c.awaitUntil
	}
	if !at.IsZero() && (c.armed.IsZero() || at.Before(c.armed)) {
		c.armed = at
		c.do(Timer{at})
	}
}

func (c *Core) onWoken() {
	if c.state == Sleeping {
		c.check()
		return
	}
	c.woken = true
}

func (c *Core) onTick() {
	switch {
	case c.state == Handling:
		c.proceed()
	case !c.isDue():
	case c.state == Sleeping:
		c.check()
	default:
		c.goOn()
	}
}

// isDue reports whether the sleep or pause, or the wait for more events, is over.
func (c *Core) isDue() bool { return !c.until.IsZero() && !c.now.Before(c.until) }

func (c *Core) onStop() {
	c.stopping = true
	if c.state == Sleeping || c.state == Pausing && !c.urgent || c.state == Filling && c.asked == noCall {
		c.goOn()
	}
}

// mayTake reports whether another lease may be taken.
func (c *Core) mayTake() bool {
	return !c.stopping && !c.budget.spent() && !c.reshape && c.abandoned == nil
}

// goOn decides what follows when nothing is under way.
func (c *Core) goOn() {
	c.until = time.Time{}
	switch more := c.mayTake(); {
	case c.end == nil && c.reshape && !c.stopping:
		c.state = Reshaping
		c.ask(ReadShards{}, shardsCall)
	case c.end == nil && !more:
		c.finish(Stopped, nil)
	case c.afterNo == unknownNo:
		c.check()
	case c.end == nil && c.leavesToOthers():
		c.idle()
	default:
		c.next(more && !c.leavesToOthers())
	}
}

// next ends a lease, if there is one, and takes the next one if take is set: at once, or when a batch is full.
func (c *Core) next(take bool) {
	switch fills := c.mustFill(); {
	case c.isLimited():
		c.awaitRate()
	case fills && c.end == nil:
		c.fill()
	default:
		c.roundTrip(take && !fills)
	}
}

// pause waits before the next statement after an error. Stop ends it, unless a lease has yet to be ended.
func (c *Core) pause(d time.Duration) {
	c.urgent = c.end != nil
	if c.stopping && !c.urgent {
		c.goOn()
		return
	}
	c.state, c.until = Pausing, c.now.Add(d)
}

// pauseAfterError pauses longer after each error in a row.
func (c *Core) pauseAfterError() { c.pause(min(c.dbRetry.Next(), c.cfg.PauseLimit)) }

// onFailed decides what follows an error of the database.
func (c *Core) onFailed(in Failed) {
	asked := c.asked
	c.asked = noCall
	switch asked {
	case checkCall:
		c.wait = nil
		c.pauseOrEnd(in.Err)
	case fillCall:
		c.pauseAfterError()
	case roundTripCall, leaseStateCall:
		c.onRoundTripFailed(in)
	case firstCall, parkedCall, tryCall, chargeCall: // nothing of the lease was handled
		c.repeat()
		c.closeLease()
		c.pauseAfterError()
	case beginCall:
		c.undone(in.Err, false)
	case reshardCall:
		if c.cfg.Drain {
			c.finish(Stopped, in.Err)
			return
		}
		c.sleep()
	case shardsCall:
		if c.cfg.Drain {
			c.finish(Stopped, in.Err)
			return
		}
		c.pause(backoff.LongestPause)
	}
}

// pauseOrEnd pauses, or ends a Drain.
func (c *Core) pauseOrEnd(err error) {
	if c.cfg.Drain {
		c.finish(Stopped, err)
		return
	}
	c.pauseAfterError()
}
