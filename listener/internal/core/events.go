package core

import (
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// Event is what has happened. The answers to calls come one per call.
type Event interface{ event() }

// Events that nobody has asked for.
type (
	// Started is the first event.
	Started struct{}
	// Woken means that there may be something to do.
	Woken struct{}
	// Tick is the time that the command Timer has set. It may come early or late.
	Tick struct{}
	// Stop means that no handler may be started any more, and that the shard is to be given up.
	Stop struct{}
	// GiveUp means that nobody waits for running handlers any more.
	GiveUp struct{}
	// DatabaseOver means that all statements fail from now on.
	DatabaseOver struct{}
)

// Answers to calls.
type (
	// Failed answers any call but Commit: the database failed, and may have done what was asked. Final is set if it is
	// not to be asked again.
	Failed struct {
		Err   error
		Final bool
	}
	// Checked answers Check.
	Checked struct {
		Gone    bool // the shard does not exist any more
		Wait    Wait
		NewerAt time.Time // when the process met an event of an unknown version; zero if it has not
	}
	// Filled answers Fill. Events is how many events of the log wait for the shard, Age how long the oldest has waited,
	// and Scanned how many positions they are among. Ready is set if something need not wait for more events.
	Filled struct {
		Events, Scanned int
		Age             time.Duration
		Ready           bool
	}
	// RoundTripDone answers RoundTrip. Ours reports whether this process still had the lease that it ended. Lease is
	// what was taken, with No 0 if there was nothing to take.
	RoundTripDone struct {
		Ours  bool
		Lease *Lease
		Took  time.Duration
	}
	// LeaseState answers AskLease.
	LeaseState struct {
		Known   bool // the shard exists
		ID      uuid.UUID
		No      int64
		Running bool
	}
	// Read answers ReadFirst.
	Read struct{}
	// ParkedTaken answers TakeParked.
	ParkedTaken struct{ Events []*Entry }
	// Tried answers Try. Ours is false if another process has the lease. Size is how many events are tried together,
	// and Next has those behind the first one of the lease, nil if there are none.
	Tried struct {
		Ours bool
		Size int
		Next *NextBatch
	}
	// Charged answers Charge. Ours is false if another process has the lease.
	Charged struct{ Ours bool }
	// Begun answers Begin.
	Begun struct{}
	// Handled answers Handle, when all handlers of the batch have returned, and Abandon.
	Handled struct {
		Batch    *Batch
		Running  string          // the events whose handlers still run, if the batch was abandoned
		TxErr    error           // what broke the transaction of the handlers
		TxResult errclass.Result // of the event, if that is its handler's fault
	}
	// Prefetched answers Prefetch.
	Prefetched struct{ Next *NextBatch }
	// Renewed answers Renew.
	Renewed struct {
		Lease  *Lease
		Sent   time.Time
		Failed bool // the database failed
		Lost   bool // another process has the lease
	}
	// Committed answers Commit. Ours reports whether this process still had the lease; otherwise nothing is committed.
	Committed struct{ Ours bool }
	// CommitFailed answers Commit. Alive reports that the session is still there, so one of the handlers is at fault, and
	// Result is what its event gets then.
	CommitFailed struct {
		Err    error
		Alive  bool
		Result errclass.Result
	}
	// ProcessFound answers FindProcess: Worker is the process, if one knows the version.
	ProcessFound struct{ Worker uuid.NullUUID }
	// Resharded answers Reshard.
	Resharded struct{ Stepped bool }
	// Registered answers ReadShards. Shards is 0 if the listener was detached.
	Registered struct{ Shards int }
)

// Wait is what a shard without a lease waits for.
type Wait struct {
	Shards       int
	LeaseNo      int64
	Paused       bool
	Resharding   bool
	Blocked      bool // until a retry
	ForeignLease bool
	Kept         bool          // its next lease is left to another process
	Ready        bool          // likewise, and it has something to do
	In           time.Duration // until something falls due without an enqueue; negative if nothing does
}

func (Started) event()       {}
func (Woken) event()         {}
func (Tick) event()          {}
func (Stop) event()          {}
func (GiveUp) event()        {}
func (DatabaseOver) event()  {}
func (Failed) event()        {}
func (Checked) event()       {}
func (Filled) event()        {}
func (RoundTripDone) event() {}
func (LeaseState) event()    {}
func (Read) event()          {}
func (ParkedTaken) event()   {}
func (Tried) event()         {}
func (Charged) event()       {}
func (Begun) event()         {}
func (Handled) event()       {}
func (Prefetched) event()    {}
func (Renewed) event()       {}
func (Committed) event()     {}
func (CommitFailed) event()  {}
func (ProcessFound) event()  {}
func (Resharded) event()     {}
func (Registered) event()    {}

// Command is what to do. A call is answered by one event. While a call is under way, the shell may pass other events.
type Command interface{ command() }

// Calls that the core waits for. Each is the last command of its step.
type (
	// Check reads what the shard waits for.
	Check struct{}
	// Fill reads how many events wait for the shard.
	Fill struct{}
	// RoundTrip ends a lease, if End is not nil, and then takes the next one, if Take is not nil.
	RoundTrip struct {
		End  *End
		Take *Take
	}
	// AskLease reads the latest lease of the shard.
	AskLease struct{}
	// ReadFirst reads the first batch of the lease.
	ReadFirst struct{ Lease *Lease }
	// TakeParked reads parked events that are due, of at most so many keys, and so many events per key.
	TakeParked struct {
		Lease        *Lease
		Keys, Events int
	}
	// Try notes, before a batch is handled after a crash, that it has half as many events as the one before, and reads
	// them.
	Try struct{ Lease *Lease }
	// Charge counts an attempt at an event of the lease before it is made.
	Charge struct {
		Lease *Lease
		Entry *Entry
	}
	// Begin begins the transaction of the handlers.
	Begin struct{}
	// Commit ends the lease in the transaction of the handlers, and commits it.
	Commit struct{ End *End }
	// Abandon stops to wait for the handlers of the batch.
	Abandon struct{ Batch *Batch }
	// FindProcess reads which other process knows the version of an event.
	FindProcess struct{ Entry *Entry }
	// Reshard takes the next step towards another number of shards.
	Reshard struct{}
	// ReadShards reads the number of shards of the listener.
	ReadShards struct{}
)

// Calls that are under way while the core goes on.
type (
	// Handle calls the handlers of the batch.
	Handle struct{ Batch *Batch }
	// Prefetch reads the next batch of a lease.
	Prefetch struct{ Next *NextBatch }
	// Renew renews a lease. It has failed if there is no answer until Until.
	Renew struct {
		Lease *Lease
		Until time.Time
	}
)

// Commands without an answer.
type (
	// DropPrefetch cancels a Prefetch, which is answered nevertheless.
	DropPrefetch struct{ Next *NextBatch }
	// CancelRenew cancels a Renew, which is answered nevertheless.
	CancelRenew struct{}
	// StopHandlers cancels the handlers of the batch, whose lease is lost.
	StopHandlers struct{ Batch *Batch }
	// Rollback rolls back the transaction of the handlers.
	Rollback struct{}
	// RollbackLater does so when the handlers of the batch have returned.
	RollbackLater struct{ Batch *Batch }
	// WakeOthers wakes the other processes. HandedOver is set if the shard was just given to one of them.
	WakeOthers struct{ HandedOver bool }
	// RequestShard asks the holder of the shard for it.
	RequestShard struct{}
	// Timer sets the time of the next Tick. It replaces the one before.
	Timer struct{ At time.Time }
	// Report tells the process what the shard does, and how long it should not be woken without a reason.
	Report struct {
		Activity Activity
		Pause    time.Duration
	}
)

// Commands for those who watch.
type (
	// TellTaken tells of the events that the lease has read; with a nil Lease, that there was nothing to take.
	TellTaken struct {
		Lease     *Lease
		Continued bool // the lease continues with a batch that was read ahead
		Carried   bool // the lease begins with such a batch
		Took      time.Duration
	}
	// TellEnd tells of the end of a lease. Ours is false if the lease was lost. InTx is set if it was ended in the
	// transaction of the handlers.
	TellEnd struct {
		End        *End
		Ours, InTx bool
	}
	// TellUndone tells what has become of the events of a lease whose end is not written, or not told by TellEnd.
	TellUndone struct {
		Lease *Lease
		Ours  bool
	}
	// TellRolledBack tells that the transaction of the handlers was rolled back.
	TellRolledBack struct {
		Lease *Lease
		Cause error
	}
	// TellLost tells that the lease is lost while its events are handled.
	TellLost struct{}
	// TellNewer tells that the shard is given up because of an event of an unknown version.
	TellNewer struct {
		Entry  *Entry
		Handed bool
	}
)

// Take is a lease to be taken.
type Take struct {
	ID, Previous uuid.UUID // of the lease, and of the latest one that this process has ended
	AfterNo      int64     // the lease is taken only if there was none since the one with this number
	TakeOver     bool      // although it is left to another process
	BatchSize    int
	ScanSize     int
	Read         bool // read its first batch, too
}

func (Check) command()          {}
func (Fill) command()           {}
func (RoundTrip) command()      {}
func (AskLease) command()       {}
func (ReadFirst) command()      {}
func (TakeParked) command()     {}
func (Try) command()            {}
func (Charge) command()         {}
func (Begin) command()          {}
func (Commit) command()         {}
func (Abandon) command()        {}
func (FindProcess) command()    {}
func (Reshard) command()        {}
func (ReadShards) command()     {}
func (Handle) command()         {}
func (Prefetch) command()       {}
func (Renew) command()          {}
func (DropPrefetch) command()   {}
func (CancelRenew) command()    {}
func (StopHandlers) command()   {}
func (Rollback) command()       {}
func (RollbackLater) command()  {}
func (WakeOthers) command()     {}
func (RequestShard) command()   {}
func (Timer) command()          {}
func (Report) command()         {}
func (TellTaken) command()      {}
func (TellEnd) command()        {}
func (TellUndone) command()     {}
func (TellRolledBack) command() {}
func (TellLost) command()       {}
func (TellNewer) command()      {}

// Activity is what a shard does, for the process that sleeps when all of its shards do.
type Activity int

// Activities of a shard.
const (
	IsChecking Activity = iota // it was woken to check, or it starts
	IsWorking                  // it found something
	IsIdle                     // it found nothing, and an event would wake it
	IsWaiting                  // it found nothing, and waits for something else: a retry, a lease, a resume
)
