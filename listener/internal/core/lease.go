package core

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/outbox"
)

// Lease is one lease of a shard with its events: the next events of the log, and parked ones that are due. The shell
// fills the exported fields when it takes the lease.
type Lease struct {
	ID            uuid.UUID
	No            int64 // its fence, lease_no; 0 if there was nothing to take
	Shards        int
	LastSeq       int64 // position of the cursor in the open window
	RetryCount    int   // attempts of the event at LastSeq+1
	OneByOne      bool  // one event at a time, its attempt counted before it is made
	AheadSeqs     []int64
	AheadAttempts []int32 // attempts of events past LastSeq that were tried before, 0 for what is done
	ParkedDue     bool
	MayPark       bool // another key may be parked
	MayParkAway   bool // likewise, if its target is unavailable
	BatchSize     int  // maximum number of events that were requested
	ScanSize      int  // maximum number of positions that were requested
	Scanned       int
	ScannedTo     int64
	Events        []*Entry
	Parked        []*Entry
	Deadline      time.Time     // end of the lease by this process's clock
	Took          time.Duration // of the round trip that read its latest batch

	bytes         int             // payload of the first batch
	parkedOnly    bool            // only parked events are handled; those of the log wait
	newer         *Entry          // the last of Events, before which the lease stops
	newerParked   *Entry          // a parked head of an unknown version
	earlier       []*Entry        // of the batches before the latest; they are done or to be parked
	parkedNow     map[string]bool // keys of those that were not parked before
	attemptsAhead map[int64]int32 // AheadAttempts by seq
	trying        int             // how many events are tried together after a crash, at most; 0 if that is not limited
	began         time.Time       // when its first handler was called
}

// Topic is what the core knows of a topic of the listener.
type Topic struct {
	Index   int // the shell finds the handler by it
	Version int // the newest that this process knows
	Target  Target
	// KeyPrefix is put in front of keys if the topic is published: destinations do not wait for each other.
	KeyPrefix string
}

// Target is where events go: the handler of a topic, or a destination. Its state outlives leases and is shared by the
// shards of a process.
type Target interface {
	// Resting reports whether the target is unavailable.
	Resting() bool
	// Why returns the result of an event that waits because the target rests, or because a call has not returned.
	Why() errclass.Result
	// Admit returns how many of n events may be tried now, and why the others may not.
	Admit(now time.Time, n int) (admitted int, others errclass.Result)
	// Untried records that an event which Admit has admitted was not tried.
	Untried()
	// RetryIn is how long it takes until a tried event may be tried again.
	RetryIn(now time.Time) time.Duration
	// LaterDelay is how long an event waits that is not the next one to try the target.
	LaterDelay() time.Duration
	// TakeReturned reports, once, that the target is available again.
	TakeReturned() bool
	// RestoreReturned makes TakeReturned report it once more.
	RestoreReturned()
	// Abandon records that a lease ends before a call under way has returned.
	Abandon()
	// TakeLateResult returns, once, the result that such a call has had for an event.
	TakeLateResult(id uuid.UUID) (errclass.Result, bool)
}

// Entry is one event of a lease.
type Entry struct {
	outbox.Event
	Payload      json.RawMessage
	Seq          int64
	ParkedNo     int64  // of a parked event
	Key          string // the key of its order: the partition key, or the id if it has none
	Head         bool   // first of the parked events of its key
	Taken        int32  // of a parked head: how many events of its key, from it on, a lease had taken whose end is unknown
	Used         int    // attempts before this lease
	ParkedBefore bool   // its key was parked before its batch began
	Of           *Topic // nil if the listener does not read its topic any more

	// The fields below are what has become of it in this lease.
	Started bool // its handler was called
	Running bool // and has not returned
	Status  Status
	Result  errclass.Result
	Away    bool   // it waits because its target is unavailable; its attempt is not counted
	Newer   bool   // this process does not know its version
	Lacks   string // what it needs is not there yet, and why; its attempt is not counted
	retry   *Retry // not to be tried yet
}

// Status is the state of an entry in its lease.
type Status int

// The states of an entry.
const (
	Waiting Status = iota // not started
	Done
	Retried // it has failed and is tried again
	Dead
	Parked
)

// Retry is when and why an event is tried again. The database keeps only the earliest of a shard.
type Retry struct {
	until time.Time
	text  string // the error of the attempt
	away  Target // the target that it waits for, if it waits for nothing else
}

// due reports whether the wait is over.
func (r *Retry) due(now time.Time) bool { return !now.Before(r.until) || r.targetBack() }

// targetBack reports whether the event waits for a target that is available again.
func (r *Retry) targetBack() bool { return r.away != nil && !r.away.Resting() }

// remaining is how long r still lasts; 0 for nil.
func (r *Retry) remaining(now time.Time) time.Duration {
	if r == nil {
		return 0
	}
	return max(r.until.Sub(now), 0)
}

// why is the error of r; "" for nil.
func (r *Retry) why() string {
	if r == nil {
		return ""
	}
	return r.text
}

// target returns the target of e, or nil if the listener no longer reads its topic.
func (e *Entry) target() Target {
	if e.Of == nil {
		return nil
	}
	return e.Of.Target
}

// isNewer reports whether the payload version of e is newer than the newest that this process knows. Such an event is
// neither tried nor charged, and no event of the log behind it is handled: a lease ends before it, and the shard goes
// to another process.
func (e *Entry) isNewer() bool { return e.Of != nil && e.Version > e.Of.Version }

// number gives e its attempt.
func (e *Entry) number(maxAttempts int) {
	e.Attempt, e.MaxAttempts = e.Used+1, maxAttempts
	if e.Used >= e.MaxAttempts && e.Status == Waiting {
		e.Status, e.Result = Dead, errclass.Result{Class: errclass.ClassRefused, Text: spentText}
	}
}

const spentText = "attempts spent: the process that handled it died each time, or the limit was lowered"

// decide sets the status of an entry whose handler has returned r, unless r concerns its target.
func (c *Config) decide(e *Entry, r errclass.Result) {
	e.Result = r
	switch {
	case r.Class == errclass.ClassDone:
		e.Status = Done
		c.dropPayload(e)
	case r.Class == errclass.ClassRefused || e.Attempt >= e.MaxAttempts:
		e.Status = Dead
	default:
		e.Status = Retried
	}
}

// dropPayload drops what is not needed any more of an event that is done or to be parked, because a lease may have many
// more events. The other fields are for log lines, and the headers for an observer.
func (c *Config) dropPayload(e *Entry) {
	if e.Payload = nil; !c.KeepHeaders {
		e.Headers = nil
	}
}

// Entries returns all events of the lease.
func (lease *Lease) Entries() []*Entry {
	return slices.Concat(lease.Parked, lease.earlier, lease.Events)
}

// Current returns the events of the batch that is handled now, parked ones first.
func (lease *Lease) Current() []*Entry { return slices.Concat(lease.Parked, lease.Events) }

// Prepare numbers the attempts of the events of a lease, and sets the status of those that need no handler.
func (lease *Lease) Prepare(c *Config, now time.Time, retries map[int64]Retry) {
	lease.attemptsAhead = make(map[int64]int32, len(lease.AheadSeqs))
	for i, seq := range lease.AheadSeqs {
		lease.attemptsAhead[seq] = lease.AheadAttempts[i]
	}
	for i, e := range lease.Events {
		if e.Of != nil {
			e.Key = e.Of.KeyPrefix + e.Key
		}
		n, tried := lease.attemptsAhead[e.Seq]
		if tried && n == 0 {
			e.Status = Done
			continue
		}
		if e.Used = int(n); e.Seq == lease.LastSeq+1 {
			e.Used = max(e.Used, lease.RetryCount)
		}
		if e.Status == Waiting && e.isNewer() {
			e.Newer, lease.newer = true, e
			lease.Events = lease.Events[:i+1]
			return
		}
		e.number(c.MaxAttempts)
		if r := retries[e.Seq]; !r.due(now) { // the zero Retry is due
			e.retry = &Retry{r.until, r.text, r.away}
		}
	}
}

// AddParked gives the lease the parked events that are due. A one-by-one lease takes one event that the previous lease
// had taken, and none of the log then: the events that may have killed the process are handled before any other. A usual lease
// becomes such a one if it gets an event that was left over, because the processes that had the leases since do not know its
// version.
func (lease *Lease) AddParked(c *Config, now time.Time, events []*Entry) {
	if len(events) == 1 && events[0].Taken > 0 && !events[0].isNewer() {
		lease.OneByOne = true
	}
	known := make(map[string]bool)
	for _, e := range events {
		e.Head, known[e.Key] = !known[e.Key], true
		if e.isNewer() { // due again after a while
			e.Newer, e.retry = true, &Retry{until: now.Add(c.PollInterval)}
			if lease.newerParked == nil && e.Head {
				lease.newerParked = e
			}
		} else {
			e.number(c.MaxAttempts)
		}
	}
	lease.Parked = events
	if lease.OneByOne && len(events) > 0 {
		lease.Events, lease.parkedOnly = nil, true
	}
}

// resetStarted resets the entries whose handlers were started, and returns them.
func (lease *Lease) resetStarted() (started []*Entry) {
	for _, e := range lease.Current() {
		if e.Started {
			e.Status, e.Result = Waiting, errclass.Result{}
			started = append(started, e)
		}
	}
	return started
}

// mustCharge returns the event of a one-by-one lease whose attempt is to be counted before it is made; nil if there is
// none.
func (lease *Lease) mustCharge() *Entry {
	if !lease.OneByOne || len(lease.Events) == 0 {
		return nil
	}
	if e := lease.Events[0]; e.Status == Waiting && e.retry == nil && !e.Newer {
		return e
	}
	return nil
}

// idle reports whether the lease stopped at an event of an unknown version before anything was handled.
func (lease *Lease) idle() bool {
	if lease.newer == nil && lease.newerParked == nil {
		return false
	}
	for _, e := range lease.Entries() {
		if e.Started || e.Status != Waiting && !e.ParkedBefore {
			return false
		}
	}
	return true
}

// reach returns the position up to which the lease has read, if every event is done.
func (lease *Lease) reach() int64 {
	if lease.newer != nil {
		return lease.newer.Seq
	}
	if n := len(lease.Events); n == lease.BatchSize { // there may be more events between here and ScannedTo
		return lease.Events[n-1].Seq
	}
	return max(lease.ScannedTo, lease.LastSeq)
}
