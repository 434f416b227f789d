package core

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// End is the end of a lease, as it is written to the database.
type End struct {
	Lease          *Lease
	Closes         bool  // the window is done
	Cuts           bool  // or what is left of it goes to the next one, to be handled together with what has come since
	Tried          bool  // Trying is set
	Trying         int32 // twice the number of events that the next lease tries after a crash; 0 if none is suspected
	LastSeq        int64
	AheadSeqs      []int64
	AheadAttempts  []int32
	RetryCount     int32
	Delayed        bool // the next lease waits for Delay
	Delay          time.Duration
	LastError      *string
	Handled        int32
	LetLeaseExpire bool          // handlers of the lease still run
	Release        bool          // the next lease is left to HandTo, or to nobody
	HandTo         uuid.NullUUID // a process
	Dead           DeadEvents
	Parking        ParkingEvents
	Settle         *Settle  // nil when nothing was parked
	Failures       Failures // the attempts that have failed, with their errors
	Promote        []string // keys whose first event becomes their head
	Heads          []int64  // seqs of events that are parked as heads
	Returned       []Target // targets that are available again: the events that wait for them are due
	Taken          int32    // how many events of a key of Promote, from its new head on, were taken and not settled
}

// DeadEvents are events of the log that become dead letters, a list per column.
type DeadEvents struct {
	Seqs     []int64
	Keys     []string
	Attempts []int32
	Errors   []string
}

// ParkingEvents are events of the log that are parked, a list per column.
type ParkingEvents struct {
	Seqs     []int64
	Keys     []string
	Attempts []int32
	DelaysUs []int64 // -1 unless the event is the head of its key
	Errors   []string
}

// Settle is what becomes of the parked events of a lease, by their numbers.
type Settle struct {
	Done, Dead, Failed []int64

	DeadAttempts []int32
	DeadErrors   []string

	FailedAttempts, FailedTaken []int32
	FailedDelaysUs              []int64
	FailedErrors                []string
}

// Failures are failed attempts, a list per column.
type Failures struct {
	IDs      []uuid.UUID
	Attempts []int32
	Errors   []string
}

// restoreReturned leaves the returned targets to the end of the next lease, because a was not written.
func (a *End) restoreReturned() {
	for _, to := range a.Returned {
		to.RestoreReturned()
	}
}

// End computes the new state of the cursor from the status of the entries of a lease.
func (c *Config) End(lease *Lease, now time.Time, release bool) *End {
	a := &End{Lease: lease, AheadSeqs: []int64{}, AheadAttempts: []int32{}, Release: release}
	a.Tried, a.Trying = lease.trying > 0, lease.nextTrying()
	c.endParked(a, now)
	c.endLog(a, now)
	a.keepFailures()
	slices.Sort(a.Promote) // a key may have several events here
	a.Promote = slices.Compact(a.Promote)
	for _, to := range c.Targets {
		if to.TakeReturned() {
			a.Returned = append(a.Returned, to)
		}
	}
	return a
}

// nextTrying returns End.Trying. As many events are tried as this time, until the one is over that has killed
// processes.
func (lease *Lease) nextTrying() int32 {
	for _, e := range lease.Events {
		if e.Status == Dead || e.Status == Done && e.Used > 0 {
			return 0
		}
	}
	return int32(2 * lease.trying)
}

// keepFailures lists the attempts that have failed, with their errors.
func (a *End) keepFailures() {
	f := &a.Failures
	for _, e := range a.Lease.Entries() {
		if e.Result.Class.Charged() && e.Attempt <= e.MaxAttempts { // beyond them, nothing was attempted
			f.IDs, f.Attempts = append(f.IDs, e.ID), append(f.Attempts, int32(e.Attempt))
			f.Errors = append(f.Errors, e.Result.Text)
		}
	}
}

// endLog moves the cursor to the first event that is not done, and records which events after it are done.
func (c *Config) endLog(a *End, now time.Time) {
	lease := a.Lease
	if lease.parkedOnly {
		a.LastSeq, a.RetryCount = lease.LastSeq, int32(lease.RetryCount)
	}
	a.Handled += int32(len(lease.earlier))
	for _, e := range lease.earlier {
		if e.Status == Parked {
			c.park(a, e, now)
		}
	}
	a.moveCursor(c.endEvents(a, now))
	for _, seq := range slices.Sorted(maps.Keys(lease.attemptsAhead)) { // not read this time
		if !a.Closes && seq > a.LastSeq {
			a.addAhead(seq, lease.attemptsAhead[seq])
		}
	}
}

// endEvents records what has become of the events that were read. It returns the first that is not over, nil if all
// are.
func (c *Config) endEvents(a *End, now time.Time) (stop *Entry) {
	for _, e := range a.Lease.Events {
		delete(a.Lease.attemptsAhead, e.Seq)
		attempts, over := c.endEvent(a, e, now)
		switch {
		case over && stop == nil:
			a.Handled++
		case stop == nil:
			stop, a.RetryCount = e, int32(attempts)
		case over || attempts > 0:
			a.addAhead(e.Seq, int32(attempts))
		}
	}
	return stop
}

// endEvent records what has become of e, and whether that is over. If it is not, e has used attempts.
func (c *Config) endEvent(a *End, e *Entry, now time.Time) (attempts int, over bool) {
	switch e.Status {
	case Done:
		return 0, true
	case Dead:
		a.Dead.add(e)
		return 0, true
	case Parked:
		c.park(a, e, now)
		return 0, true
	case Retried:
		attempts = e.Attempt
		e.retry = &Retry{until: now.Add(c.retryDelay(e)), text: e.Result.Text}
	default:
		attempts = e.Used
	}
	if e.retry != nil {
		a.delay(e.retry, now)
	}
	return attempts, false
}

// moveCursor moves the cursor to the event before stop, or behind all that were read if stop is nil. The end of a lease
// of parked events leaves it where it is.
func (a *End) moveCursor(stop *Entry) {
	lease := a.Lease
	switch {
	case lease.parkedOnly:
	case stop != nil:
		a.LastSeq = stop.Seq - 1
	default:
		a.LastSeq = lease.reach()
		a.Closes = len(lease.Events) < lease.BatchSize && lease.Scanned < lease.ScanSize && lease.newer == nil
	}
}

// addAhead adds an event behind the cursor that is done, if attempts is 0, or has used attempts.
func (a *End) addAhead(seq int64, attempts int32) {
	a.AheadSeqs, a.AheadAttempts = append(a.AheadSeqs, seq), append(a.AheadAttempts, attempts)
}

func (d *DeadEvents) add(e *Entry) {
	d.Seqs, d.Keys = append(d.Seqs, e.Seq), append(d.Keys, e.Key)
	d.Attempts = append(d.Attempts, int32(min(e.Attempt, e.MaxAttempts)))
	d.Errors = append(d.Errors, e.Result.Text)
}

// delay postpones the next lease until r is due, unless an earlier retry is set.
func (a *End) delay(r *Retry, now time.Time) {
	d := time.Duration(0)
	if !r.due(now) {
		d = r.remaining(now)
	}
	if !a.Delayed || d < a.Delay {
		a.Delayed, a.Delay = true, d
	}
	if a.LastError == nil {
		a.LastError = &r.text
	}
}

// park parks e: as the head of its key if it was tried, otherwise after the head.
func (c *Config) park(a *End, e *Entry, now time.Time) {
	p := &a.Parking
	delay, attempts, text := int64(-1), 0, ""
	switch {
	case e.Away:
		delay, attempts, text = e.retry.remaining(now).Microseconds(), e.Used, e.retry.text
	case e.Result.Class.Charged():
		delay, attempts, text = c.retryDelay(e).Microseconds(), e.Attempt, e.Result.Text
	}
	if delay >= 0 {
		a.Heads = append(a.Heads, e.Seq)
	}
	p.Keys, p.Seqs = append(p.Keys, e.Key), append(p.Seqs, e.Seq)
	p.Attempts, p.DelaysUs = append(p.Attempts, int32(attempts)), append(p.DelaysUs, delay)
	p.Errors = append(p.Errors, text)
	a.Promote = append(a.Promote, e.Key)
}

// endParked settles the parked events of the lease.
func (c *Config) endParked(a *End, now time.Time) {
	if len(a.Lease.Parked) == 0 {
		return
	}
	s := &Settle{Done: []int64{}, Dead: []int64{}}
	a.Settle = s
	for _, e := range a.Lease.Parked {
		a.Promote = append(a.Promote, e.Key)
		if a.Lease.OneByOne && (e.Status == Done || e.Status == Dead) {
			a.Taken = e.Taken - 1
		}
		switch e.Status {
		case Done:
			s.Done = append(s.Done, e.ParkedNo)
		case Dead:
			s.Dead = append(s.Dead, e.ParkedNo)
			s.DeadAttempts = append(s.DeadAttempts, int32(min(e.Attempt, e.MaxAttempts)))
			s.DeadErrors = append(s.DeadErrors, e.Result.Text)
		case Retried:
			s.fail(e, e.Attempt, 0, c.retryDelay(e), e.Result.Text)
		case Waiting:
			if e.Head { // the attempt was counted when the event was taken
				taken := int32(0)
				if e.Newer { // the events that were taken with it may still have killed their process
					taken = e.Taken
				}
				s.fail(e, e.Used, taken, e.retry.remaining(now), e.retry.why())
			}
		}
	}
}

func (s *Settle) fail(e *Entry, attempts int, taken int32, delay time.Duration, text string) {
	s.Failed = append(s.Failed, e.ParkedNo)
	s.FailedAttempts, s.FailedTaken = append(s.FailedAttempts, int32(attempts)), append(s.FailedTaken, taken)
	s.FailedDelaysUs, s.FailedErrors = append(s.FailedDelaysUs, delay.Microseconds()), append(s.FailedErrors, text)
}

// retryDelay returns how long after the failed attempt at e the next is due.
func (c *Config) retryDelay(e *Entry) time.Duration {
	return e.Result.DelayBy(c.Random, c.BaseDelay, c.MaxDelay, e.Attempt)
}
