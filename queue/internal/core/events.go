package core

import (
	"time"

	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
)

// Event is something that has happened. An event that the shell uses again must not be kept.
type Event interface{ event() }

// The events.
type (
	// Started is the first event.
	Started struct{}
	// Tick says only that time has passed, as Timer has asked for.
	Tick struct{}
	// Reported: nothing runs for these tasks any more. Each has its result.
	Reported struct{ Tasks []*Task }
	// BatchReported: nothing runs any more for these tasks of a batch, which were called together or not at all. Each has
	// its result. The others follow.
	BatchReported struct {
		Batch *RunBatch
		Tasks []*Task
	}
	// Sent: a call of a publisher has returned. Tasks are those that were sent, in order; the others were Reported. Cut
	// says that the context of the call was over.
	Sent struct {
		Send  *Send
		Tasks []*Task
		Cut   bool
	}
	// Routed: the destinations of the tasks of a Route are known. Those without one were Reported.
	Routed struct {
		Route        *Route
		Destinations []Destined
	}
	// Recalled: no worker has begun these tasks and batches, which are in the order of their commands.
	Recalled struct {
		Tasks   []*Task
		Batches []*RunBatch
	}
	// PassDone: a pass is over. Open are the tasks of it that are not known to be settled. After an error, what was
	// claimed is leased nevertheless.
	PassDone struct {
		Pass    *Pass
		Open    []*Task
		Claimed []*Task
		Found   Found
		Err     error
	}
	// Renewed: a renewal is over. Outcomes are in the order of its tasks; nil if it failed.
	Renewed struct {
		Renew    *Renew
		Outcomes []RenewalOutcome
	}
	// Woken: the doorbell rings. An event may have been enqueued, or a pause may have ended.
	Woken struct {
		Watched bool // some process holds the doorbell: later enqueues will ring too
		Left    bool // an enqueue has rung, and another process holds the doorbell, which claims what it has room for
	}
	// Answered: the doorbell has answered the request of that number.
	Answered struct {
		Request int
		Bell    sleep.Bell
	}
	// PausesRead: what is paused was read, or could not be.
	PausesRead struct {
		Pauses *Pauses
		Err    error
	}
	// Listed: the process stands in the table processes for the first time. Who ends a pause of a tenant rings only
	// processes that do.
	Listed struct{}
	// Swept: the sweep at the end of a drain is over.
	Swept struct{ Err error }
	// Stop: the context of the run is over.
	Stop struct{}
	// GiveUp: nobody waits for running handlers any more.
	GiveUp struct{}
	// DatabaseOver: no statement is made any more.
	DatabaseOver struct{}
)

func (Started) event()        {}
func (Tick) event()           {}
func (*Reported) event()      {}
func (*BatchReported) event() {}
func (*Sent) event()          {}
func (*Routed) event()        {}
func (*Recalled) event()      {}
func (*PassDone) event()      {}
func (*Renewed) event()       {}
func (Woken) event()          {}
func (Answered) event()       {}
func (*PausesRead) event()    {}
func (Listed) event()         {}
func (Swept) event()          {}
func (Stop) event()           {}
func (GiveUp) event()         {}
func (DatabaseOver) event()   {}

// Destined are tasks whose events go to one destination.
type Destined struct {
	Destination string
	Tasks       []*Task
}

// RenewalOutcome is what a renewal did to one lease.
type RenewalOutcome int

const (
	// Prolonged has prolonged it.
	Prolonged RenewalOutcome = iota
	// Gone: the event belongs to another claim.
	Gone
	// Kept: nothing was changed, for example because another transaction has the row locked.
	Kept
)

// Command is something to do.
type Command interface{ command() }

// The commands.
type (
	// Run gives a task to the workers. It waits while Config.Concurrency others run. Reported follows, or Recalled.
	Run struct{ Task *Task }
	// RunBatch gives tasks to the workers, for a call with all of them. It waits like a Run. BatchReported follows, or
	// Recalled. It follows several times if the tasks are called again in smaller batches.
	RunBatch struct {
		Tasks []*Task
		left  int // not reported
	}
	// Recall takes back what waits for a worker. Recalled follows, before anything else.
	Recall struct{}
	// Send gives tasks to the publisher of To, or to one of its destinations. Sent follows.
	Send struct {
		To          *Target
		Destination string // if To goes by event
		Tasks       []*Task
		Try         bool // it finds out whether the target is available again
		line        *line
		began       time.Time
	}
	// Route asks for the destinations of tasks. Routed follows.
	Route struct {
		To    *Target
		Tasks []*Task
	}
	// Lost says that the lease of a task is lost. Its handler, if it runs, is to be cancelled.
	Lost struct{ Task *Task }
	// Drop says that a task has failed whose lease was lost: there is nothing to settle.
	Drop struct{ Task *Task }
	// Pass settles tasks as they say and claims, in one round trip. PassDone follows.
	Pass struct {
		Settle     []*Task
		HandedBack int    // how many were for a target that is unavailable or was not called: for the Report
		Claim      *Claim // nil claims nothing
		want       int
		look       bool    // the claim looks from the head
		turns      bool    // the claim is of events that have turns
		early      bool    // of a drain: only what is finished is settled, while the rest still runs
		try        *Target // the claim is of one event, to find out whether this target is available again
		generation int     // when it started
		rung       bool    // the doorbell, before it started
		began      time.Time
		failures   int // of the database, when it started
	}
	// Renew renews leases; a renewal is of no use after Until. Renewed follows.
	Renew struct {
		Tasks []*Task
		Until time.Time
		sent  time.Time
	}
	// AskBell requests that enqueues ring, or need not ring. If they should, Answered follows.
	AskBell struct {
		Request int
		Asleep  bool
	}
	// ReadPauses reads what is paused. PausesRead follows.
	ReadPauses struct{}
	// Sweep makes dead letters of what no claim takes again. Swept follows.
	Sweep struct{}
	// TellRests tells of targets that rest, or rest no more.
	TellRests struct{ Notes []rest.Note }
	// Timer asks for a Tick at At, in place of every earlier one; at no time if At is zero.
	Timer struct{ At time.Time }
	// Signal tells a test of an internal step.
	Signal int
	// End is the last command.
	End struct {
		Unsettled int     // tasks that could not be settled
		Running   []*Task // tasks that are given up
		Err       error   // of the database
		Drained   Drained
	}
)

func (Run) command()        {}
func (*RunBatch) command()  {}
func (Recall) command()     {}
func (*Send) command()      {}
func (*Route) command()     {}
func (Lost) command()       {}
func (Drop) command()       {}
func (*Pass) command()      {}
func (*Renew) command()     {}
func (AskBell) command()    {}
func (ReadPauses) command() {}
func (Sweep) command()      {}
func (TellRests) command()  {}
func (Timer) command()      {}
func (Signal) command()     {}
func (*End) command()       {}

// Drained is why a drain has ended.
type Drained int

const (
	// DrainStopped: it was told to stop.
	DrainStopped Drained = iota
	// DrainLimit: it has handled as many events as it may.
	DrainLimit
	// DrainDone: no more events are due.
	DrainDone
)

// The signals.
const (
	// SignalIdle: nothing is due, and the next enqueue wakes the dispatcher, or it polls.
	SignalIdle Signal = iota
	// SignalRefused: the doorbell refused to watch.
	SignalRefused
	// SignalRenewed: leases were extended.
	SignalRenewed
	// SignalPaused: what is paused was read.
	SignalPaused
)
