package outbox

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
	"github.com/outboxgen/outboxgen/internal/mark"
	"github.com/outboxgen/outboxgen/internal/pgvalue"
)

// turn is what one lease of a shard brought: the next events of the log, and those set aside earlier that are due.
type turn struct {
	id         uuid.UUID
	leaseNo    int64
	shards     int
	lastSeq    int64 // where the cursor stands in the open window
	retryCount int   // attempts of the event at lastSeq+1
	careful    bool  // one event at a time, its attempt counted before it is made
	apart      bool  // events that were set aside are handled alone, and those of the log wait
	parkedDue  bool
	parkedRoom bool // another key may be set aside
	awayRoom   bool // likewise, while its target is away
	batch      int  // most events that were asked for
	scan       int  // most positions that were asked for
	scanned    int
	scannedTo  int64
	passed     []*entry        // of the batches before the latest, which are done or to be parked
	parkedNow  map[string]bool // keys of those, and not parked before
	events     []*entry
	parked     []*entry
	ahead      map[int64]int32 // attempts of events past lastSeq that were tried before, 0 for what is done
	deadline   time.Time       // end of the lease by this process's clock
	began      time.Time       // when its first handler was called
}

// entry is one event of a turn.
type entry struct {
	Event
	payload  json.RawMessage
	seq      int64
	no       int64  // of an event set aside earlier
	key      string // what keeps it in order: the partition key, or the id without one
	head     bool   // first of its key among those set aside
	suspects int32  // how many of its key, from this one on, may have killed the process
	used     int    // attempts before this turn
	started  bool   // its handler was called
	running  bool   // and has not returned
	fate     fate
	behind   bool // its key was parked before its batch began
	result   mark.Result
	held     *hold // not to be tried yet
	away     bool  // held because its target is away: its attempt is not counted
}

// fate is what becomes of an entry in its turn.
type fate int

const (
	waiting fate = iota // not started
	done
	failed // and is tried again
	dead
	aside // is put behind others of its key that are set aside
)

// judge decides about an entry whose handler has returned with r, which is not about its target.
func (l *Listener) judge(e *entry, r mark.Result) {
	e.result = r
	switch {
	case r.Class == mark.ClassDone:
		e.fate = done
		e.payload, e.Headers = nil, nil // a turn may have many more events; the rest is for the log, should the lease be lost
	case r.Class == mark.ClassRefused || e.Attempt >= e.MaxAttempts:
		e.fate = dead
	default:
		e.fate = failed
	}
}

const spentText = "attempts spent: the process that handled it died each time, or the limit was lowered"

// begin numbers the attempts of the events of t, and decides about those that need no handler.
func (l *Listener) begin(t *turn, aheadSeqs []int64, aheadAttempts []int32, holds map[int64]hold) {
	t.ahead = make(map[int64]int32, len(aheadSeqs))
	for i, seq := range aheadSeqs {
		t.ahead[seq] = aheadAttempts[i]
	}
	for _, e := range t.events {
		if l.publishes {
			e.key = l.target(e).lane() + e.key
		}
		n, ahead := t.ahead[e.seq]
		if ahead && n == 0 {
			e.fate = done
			continue
		}
		if e.used = int(n); e.seq == t.lastSeq+1 {
			e.used = max(e.used, t.retryCount)
		}
		l.number(e)
		if h, held := holds[e.seq]; held && !h.over() {
			e.held = &h
		}
	}
}

func (l *Listener) number(e *entry) {
	e.Attempt, e.MaxAttempts = e.used+1, l.cfg.MaxAttempts
	if e.used >= e.MaxAttempts && e.fate == waiting {
		e.fate, e.result = dead, mark.Result{Class: mark.ClassRefused, Text: spentText}
	}
}

// forget takes back what was made of the entries whose handlers were started, which it returns.
func (t *turn) forget() (started []*entry) {
	for _, e := range slices.Concat(t.parked, t.events) {
		if e.started {
			e.fate, e.result = waiting, mark.Result{}
			started = append(started, e)
		}
	}
	return started
}

// advance is a turn that has ended, as the database is to keep it.
type advance struct {
	turn     *turn
	params   dbsqlc.ListenerAdvanceParams
	settle   *dbsqlc.ParkedSettleParams // nil when nothing was set aside
	promote  []string                   // keys whose first event becomes their head
	returned []*target                  // that are back: what waits for them is due
	suspect  int32                      // how many events of a key of promote, from its new head on, may have killed the process
}

// untell has the next end of a turn tell who is back, because that of a was not written.
func (a *advance) untell() {
	for _, to := range a.returned {
		to.notTold()
	}
}

// entries returns all events that t has had.
func (t *turn) entries() []*entry { return slices.Concat(t.parked, t.passed, t.events) }

// reach returns how far t has read when nothing is in the way.
func (t *turn) reach() int64 {
	if n := len(t.events); n == t.batch { // there may be more between here and scannedTo
		return t.events[n-1].seq
	}
	return max(t.scannedTo, t.lastSeq)
}

// end decides, from the fates of its entries, where t leaves the cursor.
func (l *Listener) end(t *turn, shard int, release bool) *advance {
	a := &advance{turn: t}
	p := &a.params
	p.Listener, p.Shard, p.WorkerID, p.LeaseNo = l.spec.Name, int32(shard), pgvalue.UUID(l.cfg.WorkerID), t.leaseNo
	p.AheadSeqs, p.AheadAttempts = []int64{}, []int32{}
	p.Release = release
	l.endParked(a, shard)
	l.endLog(a)
	slices.Sort(a.promote) // a key may have several events here
	a.promote = slices.Compact(a.promote)
	for _, to := range l.targets.all {
		if to.isBack() {
			a.returned = append(a.returned, to)
		}
	}
	return a
}

// endLog moves the cursor past everything that is done; what is done behind the first event that is not is noted.
func (l *Listener) endLog(a *advance) {
	t, p := a.turn, &a.params
	if t.apart {
		p.LastSeq, p.RetryCount = t.lastSeq, int32(t.retryCount)
	}
	p.Handled += int32(len(t.passed))
	for _, e := range t.passed {
		if e.fate == aside {
			l.setAside(a, e)
		}
	}
	var stop *entry
	for _, e := range t.events {
		delete(t.ahead, e.seq)
		switch e.fate {
		case dead:
			p.DeadSeqs = append(p.DeadSeqs, e.seq)
			p.DeadAttempts = append(p.DeadAttempts, int32(min(e.Attempt, e.MaxAttempts)))
			p.DeadErrors = append(p.DeadErrors, e.result.Text)
		case aside:
			l.setAside(a, e)
		}
		over := e.fate == done || e.fate == dead || e.fate == aside
		switch {
		case over && stop == nil:
			p.Handled++
		case over:
			p.AheadSeqs, p.AheadAttempts = append(p.AheadSeqs, e.seq), append(p.AheadAttempts, 0)
		default:
			attempts := e.used
			if e.fate == failed {
				attempts = e.Attempt
				e.held = &hold{until: time.Now().Add(l.retryDelay(e)), text: e.result.Text}
			}
			if e.held != nil {
				e.held.delay(p)
			}
			if stop == nil {
				stop, p.RetryCount = e, int32(attempts)
			} else if attempts > 0 {
				p.AheadSeqs, p.AheadAttempts = append(p.AheadSeqs, e.seq), append(p.AheadAttempts, int32(attempts))
			}
		}
	}
	switch {
	case t.apart:
	case stop != nil:
		p.LastSeq = stop.seq - 1
	default:
		p.LastSeq = t.reach()
		p.Closes = len(t.events) < t.batch && t.scanned < t.scan
	}
	for _, seq := range slices.Sorted(maps.Keys(t.ahead)) { // not read this time
		if !p.Closes && seq > p.LastSeq {
			p.AheadSeqs, p.AheadAttempts = append(p.AheadSeqs, seq), append(p.AheadAttempts, t.ahead[seq])
		}
	}
}

// delay puts the next turn off until the earliest retry.
func (h *hold) delay(p *dbsqlc.ListenerAdvanceParams) {
	d := pgvalue.Interval(0)
	if !h.over() {
		d = pgvalue.Interval(max(time.Until(h.until), 0))
	}
	if !p.Delay.Valid || d.Microseconds < p.Delay.Microseconds {
		p.Delay = d
	}
	if p.LastError == nil {
		p.LastError = &h.text
	}
}

// note keeps what a was held for, in case that the next turn is this process's too.
func (c *cursor) note(a *advance) {
	if a.params.Closes {
		clear(c.holds)
	}
	for _, e := range a.turn.passed {
		delete(c.holds, e.seq)
	}
	for _, e := range a.turn.events {
		if e.held != nil {
			c.holds[e.seq] = *e.held
		} else {
			delete(c.holds, e.seq)
		}
	}
}

// encode makes the texts of a such that a database with that encoding can keep them.
func (a *advance) encode(encoding string) {
	lists := [][]string{a.params.DeadErrors, a.params.ParkedErrors}
	if a.settle != nil {
		lists = append(lists, a.settle.DeadErrors, a.settle.FailedErrors)
	}
	for _, texts := range lists {
		for i, text := range texts {
			texts[i] = mark.Storable(text, encoding)
		}
	}
	if text := a.params.LastError; text != nil {
		kept := mark.Storable(*text, encoding)
		a.params.LastError = &kept
	}
}

// setAside parks e: as the head of its key if it was tried, else behind it.
func (l *Listener) setAside(a *advance, e *entry) {
	p := &a.params
	delay, attempts, text := int64(-1), 0, ""
	switch {
	case e.away:
		delay, attempts, text = e.held.left().Microseconds(), e.used, e.held.text
	case e.result.Class.Charged():
		delay, attempts, text = l.retryDelay(e).Microseconds(), e.Attempt, e.result.Text
	}
	p.ParkedKeys = append(p.ParkedKeys, e.key)
	p.ParkedSeqs = append(p.ParkedSeqs, e.seq)
	p.ParkedAttempts = append(p.ParkedAttempts, int32(attempts))
	p.ParkedDelaysUs = append(p.ParkedDelaysUs, delay)
	p.ParkedErrors = append(p.ParkedErrors, text)
	a.promote = append(a.promote, e.key)
}

// endParked settles the events that were set aside earlier.
func (l *Listener) endParked(a *advance, shard int) {
	if len(a.turn.parked) == 0 {
		return
	}
	s := &dbsqlc.ParkedSettleParams{
		Listener: l.spec.Name, Shard: int32(shard), WorkerID: pgvalue.UUID(l.cfg.WorkerID), LeaseNo: a.turn.leaseNo,
		Done: []int64{}, Dead: []int64{},
	}
	a.settle = s
	for _, e := range a.turn.parked {
		a.promote = append(a.promote, e.key)
		if a.turn.careful && (e.fate == done || e.fate == dead) {
			a.suspect = e.suspects - 1
		}
		switch e.fate {
		case done:
			s.Done = append(s.Done, e.no)
		case dead:
			s.Dead = append(s.Dead, e.no)
			s.DeadAttempts = append(s.DeadAttempts, int32(min(e.Attempt, e.MaxAttempts)))
			s.DeadErrors = append(s.DeadErrors, e.result.Text)
		case failed:
			s.Failed = append(s.Failed, e.no)
			s.FailedAttempts = append(s.FailedAttempts, int32(e.Attempt))
			s.FailedDelaysUs = append(s.FailedDelaysUs, l.retryDelay(e).Microseconds())
			s.FailedErrors = append(s.FailedErrors, e.result.Text)
		case waiting:
			if e.head { // its attempt was counted when it was taken
				s.Failed = append(s.Failed, e.no)
				s.FailedAttempts = append(s.FailedAttempts, int32(e.used))
				s.FailedDelaysUs = append(s.FailedDelaysUs, e.held.left().Microseconds())
				s.FailedErrors = append(s.FailedErrors, e.held.why())
			}
		}
	}
}

// retryDelay returns how long after the failed attempt at e the next is due.
func (l *Listener) retryDelay(e *entry) time.Duration {
	return e.result.Delay(l.spec.Retry.BaseDelay, l.spec.Retry.MaxDelay, e.Attempt)
}
