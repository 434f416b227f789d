package listener

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

// shardLease is one lease of a shard with its events: the next events of the log, and parked ones that are due.
type shardLease struct {
	id          uuid.UUID
	leaseNo     int64
	at          queries.ListenerTakeLeaseRow // what was read when it was taken
	shards      int
	lastSeq     int64 // position of the cursor in the open window
	retryCount  int   // attempts of the event at lastSeq+1
	oneByOne    bool  // one event at a time, its attempt counted before it is made
	parkedOnly  bool  // only parked events are handled; those of the log wait
	parkedDue   bool
	mayPark     bool // another key may be parked
	mayParkAway bool // likewise, if its target is unavailable
	batchSize   int  // maximum number of events that were requested
	scanSize    int  // maximum number of positions that were requested
	scanned     int
	scannedTo   int64
	newer       *entry          // the last of events, before which the lease stops
	newerParked *entry          // a parked head of an unknown version
	earlier     []*entry        // of the batches before the latest; they are done or to be parked
	parkedNow   map[string]bool // keys of those that were not parked before
	events      []*entry
	parked      []*entry
	ahead       map[int64]int32 // attempts of events past lastSeq that were tried before, 0 for what is done
	deadline    time.Time       // end of the lease by this process's clock
	began       time.Time       // when its first handler was called
	took        time.Duration   // of the round trip that read its latest batch
}

// entry is one event of a lease.
type entry struct {
	outbox.Event
	payload      json.RawMessage
	seq          int64
	parkedNo     int64  // of a parked event
	key          string // the key of its order: the partition key, or the id if it has none
	head         bool   // first of the parked events of its key
	taken        int32  // how many events of its key, from this one on, were taken and not settled
	used         int    // attempts before this lease
	started      bool   // its handler was called
	running      bool   // and has not returned
	status       entryStatus
	parkedBefore bool // its key was parked before its batch began
	result       errclass.Result
	retry        *pendingRetry // not to be tried yet
	away         bool          // it waits because its target is unavailable; its attempt is not counted
	newer        bool          // this process does not know its version
	served       *served       // what the listener knows of its topic; see Listener.of
}

// entryStatus is the state of an entry in its lease.
type entryStatus int

const (
	statusWaiting entryStatus = iota // not started
	statusDone
	statusFailed // and is tried again
	statusDead
	statusParked
)

// decide sets the status of an entry whose handler has returned r, unless r concerns its target.
func (l *Listener) decide(e *entry, r errclass.Result) {
	e.result = r
	switch {
	case r.Class == errclass.ClassDone:
		e.status = statusDone
		l.slim(e)
	case r.Class == errclass.ClassRefused || e.Attempt >= e.MaxAttempts:
		e.status = statusDead
	default:
		e.status = statusFailed
	}
}

// slim drops what is not needed any more of an event that is done or to be parked, because a lease may have many more
// events. The other fields are for log lines, and the headers for an observer.
func (l *Listener) slim(e *entry) {
	if e.payload = nil; !l.hooks.WantsEnds() {
		e.Headers = nil
	}
}

const spentText = "attempts spent: the process that handled it died each time, or the limit was lowered"

// prepare numbers the attempts of the events of a lease, and sets the status of those that need no handler.
func (l *Listener) prepare(lease *shardLease, aheadSeqs []int64, aheadAttempts []int32, retries map[int64]pendingRetry) {
	lease.ahead = make(map[int64]int32, len(aheadSeqs))
	for i, seq := range aheadSeqs {
		lease.ahead[seq] = aheadAttempts[i]
	}
	for i, e := range lease.events {
		if l.publishes {
			e.key = l.target(e).KeyPrefix() + e.key
		}
		n, ahead := lease.ahead[e.seq]
		if ahead && n == 0 {
			e.status = statusDone
			continue
		}
		if e.used = int(n); e.seq == lease.lastSeq+1 {
			e.used = max(e.used, lease.retryCount)
		}
		if e.status == statusWaiting && l.isNewer(e) {
			lease.stopAt(e, i)
			return
		}
		l.number(e)
		if len(retries) > 0 {
			if r, pending := retries[e.seq]; pending && !r.due() {
				e.retry = &r
			}
		}
	}
}

func (l *Listener) number(e *entry) {
	e.Attempt, e.MaxAttempts = e.used+1, l.cfg.MaxAttempts
	if e.used >= e.MaxAttempts && e.status == statusWaiting {
		e.status, e.result = statusDead, errclass.Result{Class: errclass.ClassRefused, Text: spentText}
	}
}

// resetStarted resets the entries whose handlers were started, and returns them.
func (lease *shardLease) resetStarted() (started []*entry) {
	for _, e := range slices.Concat(lease.parked, lease.events) {
		if e.started {
			e.status, e.result = statusWaiting, errclass.Result{}
			started = append(started, e)
		}
	}
	return started
}

// advance is the end of a lease, as it is written to the database.
type advance struct {
	lease    *shardLease
	params   queries.ListenerAdvanceParams
	settle   *queries.ParkedSettleParams // nil when nothing was parked
	fail     *queries.ListenerFailParams // nil when nothing has failed
	promote  []string                    // keys whose first event becomes their head
	heads    []int64                     // seqs of events that are parked as heads
	returned []*target.Target            // targets that are available again: the events that wait for them are due
	taken    int32                       // how many events of a key of promote, from its new head on, were taken and not settled
}

// restoreReturned leaves the returned targets to the end of the next lease, because a was not written.
func (a *advance) restoreReturned() {
	for _, to := range a.returned {
		to.RestoreReturned()
	}
}

func (lease *shardLease) parkNow(key string) {
	if lease.parkedNow == nil {
		lease.parkedNow = make(map[string]bool)
	}
	lease.parkedNow[key] = true
}

// entries returns all events of the lease.
func (lease *shardLease) entries() []*entry {
	return slices.Concat(lease.parked, lease.earlier, lease.events)
}

// reach returns the position up to which the lease has read, if every event is done.
func (lease *shardLease) reach() int64 {
	if lease.newer != nil {
		return lease.newer.seq
	}
	if n := len(lease.events); n == lease.batchSize { // there may be more events between here and scannedTo
		return lease.events[n-1].seq
	}
	return max(lease.scannedTo, lease.lastSeq)
}

// end computes the new state of the cursor from the status of the entries of a lease.
func (l *Listener) end(lease *shardLease, shard int, release bool) *advance {
	a := &advance{lease: lease}
	p := &a.params
	p.Listener, p.Shard, p.WorkerID, p.LeaseNo = l.spec.Name, int32(shard), pgvalue.UUID(l.cfg.WorkerID), lease.leaseNo
	p.AheadSeqs, p.AheadAttempts = []int64{}, []int32{}
	p.Release = release
	l.endParked(a, shard)
	l.endLog(a)
	a.keepFailures()
	slices.Sort(a.promote) // a key may have several events here
	a.promote = slices.Compact(a.promote)
	for _, to := range l.targets.All {
		if to.TakeReturned() {
			a.returned = append(a.returned, to)
		}
	}
	return a
}

// keepFailures lists the attempts that have failed, with their errors.
func (a *advance) keepFailures() {
	p := a.params
	f := queries.ListenerFailParams{Listener: p.Listener, Shard: p.Shard, WorkerID: p.WorkerID, LeaseNo: p.LeaseNo}
	for _, e := range a.lease.entries() {
		if e.result.Class.Charged() && e.Attempt <= e.MaxAttempts { // beyond them, nothing was attempted
			f.Ids, f.Attempts, f.Errors = append(f.Ids, pgvalue.UUID(e.ID)), append(f.Attempts, int32(e.Attempt)), append(f.Errors, e.result.Text)
		}
	}
	if len(f.Ids) > 0 {
		a.fail = &f
	}
}

// endLog moves the cursor to the first event that is not done, and records which events after it are done.
func (l *Listener) endLog(a *advance) {
	lease, p := a.lease, &a.params
	if lease.parkedOnly {
		p.LastSeq, p.RetryCount = lease.lastSeq, int32(lease.retryCount)
	}
	p.Handled += int32(len(lease.earlier))
	for _, e := range lease.earlier {
		if e.status == statusParked {
			l.park(a, e)
		}
	}
	var stop *entry
	for _, e := range lease.events {
		delete(lease.ahead, e.seq)
		switch e.status {
		case statusDead:
			p.DeadSeqs, p.DeadKeys = append(p.DeadSeqs, e.seq), append(p.DeadKeys, e.key)
			p.DeadAttempts = append(p.DeadAttempts, int32(min(e.Attempt, e.MaxAttempts)))
			p.DeadErrors = append(p.DeadErrors, e.result.Text)
		case statusParked:
			l.park(a, e)
		}
		over := e.status == statusDone || e.status == statusDead || e.status == statusParked
		switch {
		case over && stop == nil:
			p.Handled++
		case over:
			p.AheadSeqs, p.AheadAttempts = append(p.AheadSeqs, e.seq), append(p.AheadAttempts, 0)
		default:
			attempts := e.used
			if e.status == statusFailed {
				attempts = e.Attempt
				e.retry = &pendingRetry{until: time.Now().Add(l.retryDelay(e)), text: e.result.Text}
			}
			if e.retry != nil {
				e.retry.delay(p)
			}
			if stop == nil {
				stop, p.RetryCount = e, int32(attempts)
			} else if attempts > 0 {
				p.AheadSeqs, p.AheadAttempts = append(p.AheadSeqs, e.seq), append(p.AheadAttempts, int32(attempts))
			}
		}
	}
	switch {
	case lease.parkedOnly:
	case stop != nil:
		p.LastSeq = stop.seq - 1
	default:
		p.LastSeq = lease.reach()
		p.Closes = len(lease.events) < lease.batchSize && lease.scanned < lease.scanSize && lease.newer == nil
	}
	for _, seq := range slices.Sorted(maps.Keys(lease.ahead)) { // not read this time
		if !p.Closes && seq > p.LastSeq {
			p.AheadSeqs, p.AheadAttempts = append(p.AheadSeqs, seq), append(p.AheadAttempts, lease.ahead[seq])
		}
	}
}

// delay postpones the next lease until r is due, unless an earlier retry is set.
func (r *pendingRetry) delay(p *queries.ListenerAdvanceParams) {
	d := pgvalue.Interval(0)
	if !r.due() {
		d = pgvalue.Interval(max(time.Until(r.until), 0))
	}
	if !p.Delay.Valid || d.Microseconds < p.Delay.Microseconds {
		p.Delay = d
	}
	if p.LastError == nil {
		p.LastError = &r.text
	}
}

// rememberRetries keeps the pending retries in case this process takes the next lease too.
func (c *cursor) rememberRetries(a *advance) {
	if a.params.Closes {
		clear(c.retries)
	}
	for _, e := range a.lease.earlier {
		delete(c.retries, e.seq)
	}
	for _, e := range a.lease.events {
		if e.retry != nil {
			c.retries[e.seq] = *e.retry
		} else {
			delete(c.retries, e.seq)
		}
	}
}

// encode escapes the texts of a, so that a database with that encoding can store them.
func (a *advance) encode(encoding string) {
	lists := [][]string{a.params.DeadErrors, a.params.ParkedErrors}
	if a.settle != nil {
		lists = append(lists, a.settle.DeadErrors, a.settle.FailedErrors)
	}
	if a.fail != nil {
		lists = append(lists, a.fail.Errors)
	}
	for _, texts := range lists {
		for i, text := range texts {
			texts[i] = errclass.Storable(text, encoding)
		}
	}
	if text := a.params.LastError; text != nil {
		kept := errclass.Storable(*text, encoding)
		a.params.LastError = &kept
	}
}

// park parks e: as the head of its key if it was tried, otherwise after the head.
func (l *Listener) park(a *advance, e *entry) {
	p := &a.params
	delay, attempts, text := int64(-1), 0, ""
	switch {
	case e.away:
		delay, attempts, text = e.retry.remaining().Microseconds(), e.used, e.retry.text
	case e.result.Class.Charged():
		delay, attempts, text = l.retryDelay(e).Microseconds(), e.Attempt, e.result.Text
	}
	if delay >= 0 {
		a.heads = append(a.heads, e.seq)
	}
	p.ParkedKeys = append(p.ParkedKeys, e.key)
	p.ParkedSeqs = append(p.ParkedSeqs, e.seq)
	p.ParkedAttempts = append(p.ParkedAttempts, int32(attempts))
	p.ParkedDelaysUs = append(p.ParkedDelaysUs, delay)
	p.ParkedErrors = append(p.ParkedErrors, text)
	a.promote = append(a.promote, e.key)
}

// endParked settles the parked events of the lease.
func (l *Listener) endParked(a *advance, shard int) {
	if len(a.lease.parked) == 0 {
		return
	}
	s := &queries.ParkedSettleParams{
		Listener: l.spec.Name, Shard: int32(shard), WorkerID: pgvalue.UUID(l.cfg.WorkerID), LeaseNo: a.lease.leaseNo,
		Done: []int64{}, Dead: []int64{},
	}
	a.settle = s
	for _, e := range a.lease.parked {
		a.promote = append(a.promote, e.key)
		if a.lease.oneByOne && (e.status == statusDone || e.status == statusDead) {
			a.taken = e.taken - 1
		}
		switch e.status {
		case statusDone:
			s.Done = append(s.Done, e.parkedNo)
		case statusDead:
			s.Dead = append(s.Dead, e.parkedNo)
			s.DeadAttempts = append(s.DeadAttempts, int32(min(e.Attempt, e.MaxAttempts)))
			s.DeadErrors = append(s.DeadErrors, e.result.Text)
		case statusFailed:
			s.Failed = append(s.Failed, e.parkedNo)
			s.FailedAttempts, s.FailedTaken = append(s.FailedAttempts, int32(e.Attempt)), append(s.FailedTaken, 0)
			s.FailedDelaysUs = append(s.FailedDelaysUs, l.retryDelay(e).Microseconds())
			s.FailedErrors = append(s.FailedErrors, e.result.Text)
		case statusWaiting:
			if e.head { // the attempt was counted when the event was taken
				taken := int32(0)
				if e.newer { // the events that were taken with it may still have killed their process
					taken = e.taken
				}
				s.Failed = append(s.Failed, e.parkedNo)
				s.FailedAttempts, s.FailedTaken = append(s.FailedAttempts, int32(e.used)), append(s.FailedTaken, taken)
				s.FailedDelaysUs = append(s.FailedDelaysUs, e.retry.remaining().Microseconds())
				s.FailedErrors = append(s.FailedErrors, e.retry.why())
			}
		}
	}
}

// retryDelay returns how long after the failed attempt at e the next is due.
func (l *Listener) retryDelay(e *entry) time.Duration {
	return e.result.Delay(l.spec.Retry.BaseDelay, l.spec.Retry.MaxDelay, e.Attempt)
}
