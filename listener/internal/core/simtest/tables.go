package simtest

import (
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// row is an event of the log.
type row struct {
	seq     int64
	key     string
	bucket  int
	version int
	target  int
	visible bool // committed

	rollsBack bool // its transaction will be rolled back
}

// set is a set of seqs: a snapshot of the log, for example.
type set []bool

func (s set) has(seq int64) bool { return seq < int64(len(s)) && s[seq] }

func (s *set) add(seq int64) {
	for int64(len(*s)) <= seq {
		*s = append(*s, false)
	}
	(*s)[seq] = true
}

// cursor is the row of a shard in the table listeners.
type cursor struct {
	leaseNo    int64
	leaseID    uuid.UUID
	leaseBy    uuid.UUID // zero for null
	leaseUntil time.Time
	running    bool
	preferred  uuid.UUID
	wantedBy   uuid.UUID
	retryAfter time.Time
	oneByOne   int
	trying     int
	inBatch    bool
	lo, hi     set
	lastSeq    int64
	retryCount int
	ahead      map[int64]int32
	barrier    set
}

// parkedRow is a row of the table parked. retryAfter is zero unless it is the head of its key.
type parkedRow struct {
	no, seq    int64
	key        string
	bucket     int
	attempts   int
	taken      int32 // of a head: how many events of its key a lease has taken whose end is not known
	retryAfter time.Time
}

// tables is a toy model of the tables, with the same statements.
type tables struct {
	log       []*row // in the order of their seqs
	shards    []*cursor
	parked    []*parkedRow // in the order of their numbers
	lastNo    int64
	dead      set
	reshardTo int
	latest    set // the latest snapshot; nil if something has committed since
	lease     time.Duration
	alone     int                // how many events are handled one by one after a crash
	without   string             // the guard that is left out
	done      int                // so many of log are known to be handled, dead or rolled back
	ended     map[uuid.UUID]bool // the leases that were ended
}

// lacks reports whether a guard is left out.
func (t *tables) lacks(guard string) bool { return t.without == guard }

// snapshot is what has committed.
func (t *tables) snapshot() set {
	if t.latest == nil {
		t.latest = make(set, 1)
		for _, r := range t.log {
			if r.visible || t.lacks("commit") {
				t.latest.add(r.seq)
			}
		}
	}
	return t.latest
}

// commit makes r visible.
func (t *tables) commit(r *row) { r.visible, t.latest = true, nil }

func (t *tables) rowOf(seq int64) *row { return t.log[seq-1] }

// window are the rows that a cursor has yet to pass, of all shards.
func (t *tables) window(c *cursor, hi set) (rows []*row) {
	high := int64(0)
	if t.lacks("straggler") {
		high = int64(len(c.lo)) - 1
	}
	for _, r := range t.log {
		if r.seq > c.lastSeq && hi.has(r.seq) && !c.lo.has(r.seq) && r.seq > high {
			rows = append(rows, r)
		}
	}
	return rows
}

func (t *tables) isParked(key string) bool {
	return slices.ContainsFunc(t.parked, func(p *parkedRow) bool { return p.key == key })
}

func (t *tables) parkedDue(shard int, now time.Time) bool {
	return slices.ContainsFunc(t.parked, func(p *parkedRow) bool {
		return !p.retryAfter.IsZero() && !p.retryAfter.After(now) && p.bucket%len(t.shards) == shard
	})
}

// hasWork is the last condition of ListenerTakeLease.
func (t *tables) hasWork(shard int, c *cursor, now time.Time) bool {
	switch {
	case c.inBatch:
		return true
	case c.barrier != nil:
		return !slices.Equal(c.lo, c.barrier)
	case t.reshardTo > 0:
		return false
	case t.parkedDue(shard, now):
		return true
	}
	return len(t.window(c, t.snapshot())) > 0
}

// take is ListenerTakeLease.
func (t *tables) take(shard int, by uuid.UUID, p *core.Take, now time.Time, lease *core.Lease) {
	if shard >= len(t.shards) {
		return
	}
	c := t.shards[shard]
	if !t.offers(c, by, p, now) || c.retryAfter.After(now) || !t.hasWork(shard, c, now) {
		return
	}
	t.lend(c, by, p, now)
	if !c.inBatch {
		if c.hi = c.barrier; c.hi == nil {
			c.hi = t.snapshot()
		}
	}
	c.inBatch = true
	lease.No, lease.Shards, lease.LastSeq, lease.RetryCount = c.leaseNo, len(t.shards), c.lastSeq, c.retryCount
	lease.OneByOne, lease.ParkedDue = c.oneByOne > 0, t.parkedDue(shard, now)
	lease.MayPark, lease.MayParkAway = true, true
	for seq, n := range c.ahead {
		lease.AheadSeqs, lease.AheadAttempts = append(lease.AheadSeqs, seq), append(lease.AheadAttempts, n)
	}
}

// repeats reports whether p has taken the lease already, and its answer was lost.
func (c *cursor) repeats(p *core.Take) bool { return c.running && c.leaseID == p.ID }

// offers reports whether p of by may take the lease.
func (t *tables) offers(c *cursor, by uuid.UUID, p *core.Take, now time.Time) bool {
	none := uuid.UUID{}
	if t.lacks("take-lease") {
		return true
	}
	free := c.leaseBy == none && (c.preferred == none || c.preferred == by || p.TakeOver)
	expired := !c.leaseUntil.IsZero() && c.leaseUntil.Before(now)
	mine := c.leaseBy == by && c.running && (c.leaseID == p.ID || c.leaseID == p.Previous)
	return (free || expired || mine) && (c.leaseNo == p.AfterNo && c.leaseID != p.ID || c.repeats(p))
}

// lend gives the lease to p of by.
func (t *tables) lend(c *cursor, by uuid.UUID, p *core.Take, now time.Time) {
	if c.running && !t.lacks("one-by-one") && !(c.leaseID == p.ID || c.leaseBy == by && c.leaseID == p.Previous) {
		c.oneByOne = max(c.oneByOne, t.alone)
	}
	if !c.repeats(p) {
		c.leaseNo++
	}
	if c.preferred != by {
		c.wantedBy = uuid.UUID{}
	}
	c.leaseBy, c.leaseUntil, c.leaseID, c.preferred, c.running = by, now.Add(t.lease), p.ID, by, true
}

// holds reports whether by has the lease with number no. Each kind of statement has the guard.
func (t *tables) holds(shard int, by uuid.UUID, no int64, statement string) bool {
	if shard >= len(t.shards) {
		return false
	}
	if statement != "" && t.lacks("fence-of-"+statement) {
		return t.shards[shard].in(statement)
	}
	c := t.shards[shard]
	return c.leaseBy == by && c.leaseNo == no && c.running
}

// leaseNo returns the number of the latest lease of a shard; 0 if there is no such shard.
func (t *tables) leaseNo(shard int) int64 {
	if shard >= len(t.shards) {
		return 0
	}
	return t.shards[shard].leaseNo
}

// in reports whether a statement without its fence has something to change.
func (c *cursor) in(statement string) bool { return c.inBatch || statement != "end" }

func (t *tables) entry(r *row, topics [2]*core.Topic) *core.Entry {
	e := &core.Entry{Seq: r.seq, Key: r.key, Of: topics[r.target]}
	e.Version, e.ID = r.version, uuid.UUID{15: byte(r.seq), 14: byte(r.seq >> 8)}
	if t.isParked(r.key) && !t.lacks("parked-key") {
		e.Status, e.ParkedBefore = core.Parked, true
	}
	return e
}

// read is LogRead.
func (t *tables) read(shard int, lease *core.Lease, topics [2]*core.Topic) {
	c := t.shards[shard]
	limit := lease.BatchSize
	if lease.OneByOne {
		limit = 1
	}
	for _, r := range t.window(c, c.hi) {
		if lease.Scanned == lease.ScanSize {
			return
		}
		lease.Scanned++
		lease.ScannedTo = r.seq
		if r.bucket%len(t.shards) == shard && len(lease.Events) < limit {
			lease.Events = append(lease.Events, t.entry(r, topics))
		}
	}
}

// readNext is LogReadNext.
func (t *tables) readNext(shard int, by *process, p *core.NextBatch, size int) {
	if !t.holds(shard, by.id, p.Lease.No, "read") {
		return
	}
	c := t.shards[shard]
	for _, r := range t.window(c, c.hi) {
		if r.seq <= p.After {
			continue
		}
		if p.Scanned == size {
			return
		}
		p.Scanned++
		p.ScannedTo = r.seq
		if r.bucket%len(t.shards) == shard {
			p.Add(t.entry(r, by.topics))
		}
	}
}

// try is ListenerTry, with the LogReadNext that follows.
func (t *tables) try(shard int, by *process, lease *core.Lease, most int) core.Tried {
	if !t.holds(shard, by.id, lease.No, "try") {
		return core.Tried{}
	}
	c := t.shards[shard]
	if c.trying == 0 {
		c.trying = 2 * most
	}
	c.trying = min(max(c.trying/2, 1), most)
	in := core.Tried{Ours: true, Size: c.trying}
	if c.trying > 1 {
		in.Next = &core.NextBatch{Lease: lease, After: lease.Events[0].Seq}
		t.readNext(shard, by, in.Next, c.trying-1)
	}
	return in
}

// fill is ListenerFill, which does not see what was committed late, behind the cursor. An event has waited for any time.
func (t *tables) fill(shard int, now time.Time) (f core.Filled) {
	if shard >= len(t.shards) {
		return core.Filled{Ready: true}
	}
	c := t.shards[shard]
	for _, r := range t.window(c, t.snapshot()) {
		if r.seq < int64(len(c.lo)) {
			continue
		}
		f.Scanned++
		if r.bucket%len(t.shards) == shard {
			f.Events++
		}
	}
	f.Ready = c.oneByOne > 0 || c.retryCount > 0 || len(c.ahead) > 0 || t.parkedDue(shard, now)
	return f
}

// advance is ListenerAdvance with its companions.
func (t *tables) advance(shard int, by uuid.UUID, a *core.End, now time.Time) (moved bool) {
	if !t.holds(shard, by, a.Lease.No, "end") {
		return false
	}
	t.ended[a.Lease.ID] = true
	if a.Settle != nil {
		t.settle(a.Settle, now)
	}
	c := t.shards[shard]
	t.move(c, a, now)
	c.release(a)
	for _, seq := range a.Dead.Seqs {
		if !t.lacks("dead-letter") {
			t.dead.add(seq)
		}
	}
	if !t.lacks("parking") {
		t.park(&a.Parking, now)
	}
	for _, to := range a.Returned {
		t.wakeParked(to.(*target).number, now)
	}
	if len(a.Promote) > 0 {
		t.demote(a.Heads)
	}
	for _, key := range a.Promote {
		if !t.lacks("promote") {
			t.promote(key, a.Taken, now)
		}
	}
	return true
}

// charge is ListenerCharge.
func (t *tables) charge(shard int, by uuid.UUID, lease, seq int64, attempt int) bool {
	if !t.holds(shard, by, lease, "charge") {
		return false
	}
	c := t.shards[shard]
	if c.lastSeq = seq - 1; !t.lacks("charge") {
		c.retryCount = attempt
	}
	return true
}

// renew is ListenerRenew.
func (t *tables) renew(shard int, by uuid.UUID, lease int64, now time.Time) bool {
	if !t.holds(shard, by, lease, "renewal") {
		return false
	}
	t.shards[shard].leaseUntil = now.Add(t.lease)
	return true
}

// settle removes the parked events that are over, and delays those that have failed.
func (t *tables) settle(p *core.Settle, now time.Time) {
	t.parked = slices.DeleteFunc(t.parked, func(r *parkedRow) bool {
		if slices.Contains(p.Dead, r.no) {
			t.dead.add(r.seq)
		}
		return slices.Contains(p.Done, r.no) || slices.Contains(p.Dead, r.no)
	})
	for i, no := range p.Failed {
		for _, r := range t.parked {
			if r.no == no {
				r.attempts, r.taken = int(p.FailedAttempts[i]), p.FailedTaken[i]
				r.retryAfter = now.Add(time.Duration(p.FailedDelaysUs[i]) * time.Microsecond)
			}
		}
	}
}

// move moves the cursor.
func (t *tables) move(c *cursor, a *core.End, now time.Time) {
	if a.Closes {
		if t.lacks("close") {
			c.hi = c.lo
		}
		c.lo, c.hi, c.lastSeq, c.inBatch = c.hi, nil, 0, false
	} else {
		c.lastSeq = a.LastSeq
	}
	if a.Cuts && c.barrier == nil {
		c.cut()
	}
	c.ahead = make(map[int64]int32)
	for i, seq := range a.AheadSeqs {
		if !t.lacks("ahead") {
			c.ahead[seq] = a.AheadAttempts[i]
		}
	}
	if c.retryCount, c.retryAfter = int(a.RetryCount), (time.Time{}); t.lacks("retry-count") {
		c.retryCount = 0
	}
	if a.Delayed {
		c.retryAfter = now.Add(a.Delay)
	}
	if c.oneByOne = max(c.oneByOne-int(a.Handled), 0); a.Closes {
		c.oneByOne = 0
	}
	if a.Tried {
		c.trying = int(a.Trying) * min(c.oneByOne, 1)
	}
}

// cut is ListenerCut: the window ends at lastSeq.
func (c *cursor) cut() {
	lo := slices.Clone(c.lo)
	for seq := range c.lastSeq + 1 {
		if c.hi.has(seq) {
			lo.add(seq)
		}
	}
	c.lo, c.hi, c.lastSeq, c.inBatch = lo, nil, 0, false
}

// release ends the lease, and says who is to take the next one.
func (c *cursor) release(a *core.End) {
	c.running = false
	switch {
	case a.LetLeaseExpire:
		c.leaseBy, c.preferred = uuid.Max, uuid.UUID{}
	case a.Release:
		c.preferred = a.HandTo.UUID
	case c.wantedBy != uuid.UUID{}:
		c.preferred = c.wantedBy
	default:
		c.preferred = c.leaseBy
	}
	if !a.LetLeaseExpire {
		c.leaseBy, c.leaseUntil = uuid.UUID{}, time.Time{}
	}
	c.wantedBy = uuid.UUID{}
}

// park parks events.
func (t *tables) park(p *core.ParkingEvents, now time.Time) {
	for i, seq := range p.Seqs {
		t.lastNo++
		r := &parkedRow{
			no: t.lastNo, seq: seq, key: p.Keys[i], bucket: t.rowOf(seq).bucket, attempts: int(p.Attempts[i]),
		}
		if d := p.DelaysUs[i]; d >= 0 {
			r.retryAfter = now.Add(time.Duration(d) * time.Microsecond)
		}
		t.parked = append(t.parked, r)
	}
}

// wakeParked is ParkedWake: the heads that wait for a target, without an attempt, are due.
func (t *tables) wakeParked(target int, now time.Time) {
	for _, r := range t.parked {
		if t.rowOf(r.seq).target == target && r.retryAfter.After(now) && r.attempts == 0 {
			r.retryAfter = now
		}
	}
}

// first returns the first parked event of a key.
func (t *tables) first(key string) *parkedRow {
	for _, r := range t.parked {
		if r.key == key {
			return r
		}
	}
	return nil
}

// promote is ParkedPromote for one key: its first parked event is its head, which is due unless it was the head before.
func (t *tables) promote(key string, taken int32, now time.Time) {
	if r := t.first(key); r != nil && r.retryAfter.IsZero() {
		r.retryAfter, r.taken = now, taken
	}
}

// demote makes events no heads that were parked as heads, behind others of their key.
func (t *tables) demote(heads []int64) {
	for _, seq := range heads {
		for _, r := range t.parked {
			if r.seq == seq && r != t.first(r.key) {
				r.retryAfter = time.Time{}
			}
		}
	}
}

// leaseState is ListenerLeaseState.
func (t *tables) leaseState(shard int) core.LeaseState {
	if shard >= len(t.shards) {
		return core.LeaseState{}
	}
	c := t.shards[shard]
	return core.LeaseState{Known: true, ID: c.leaseID, No: c.leaseNo, Running: c.running}
}

// takeParked is ParkedTake.
func (t *tables) takeParked(shard int, by *process, cmd core.TakeParked, now time.Time) (events []*core.Entry) {
	if !t.holds(shard, by.id, cmd.Lease.No, "take-parked") {
		return nil
	}
	var due []*parkedRow
	suspect := func(p *parkedRow) bool {
		r := t.rowOf(p.seq)
		return p.taken > 0 && r.version <= by.topics[r.target].Version
	}
	for _, p := range t.parked {
		if p.retryAfter.IsZero() || p.retryAfter.After(now) || p.bucket%len(t.shards) != shard {
			continue
		}
		if !cmd.Lease.OneByOne || suspect(p) {
			due = append(due, p)
		}
	}
	slices.SortStableFunc(due, func(a, b *parkedRow) int { return a.retryAfter.Compare(b.retryAfter) })
	due = due[:min(len(due), cmd.Keys)]
	most := cmd.Events
	i := slices.IndexFunc(due, suspect)
	if i >= 0 && !t.lacks("parked-alone") {
		due, most = due[i:i+1], 1
	}
	for _, head := range due {
		n := 0
		for _, p := range t.parked {
			if p.key == head.key && n < most {
				n++
				e := t.entry(t.rowOf(p.seq), by.topics)
				e.Status, e.ParkedBefore, e.ParkedNo, e.Used, e.Taken = core.Waiting, false, p.no, p.attempts, p.taken
				events = append(events, e)
			}
		}
	}
	slices.SortFunc(events, func(a, b *core.Entry) int { return cmp.Compare(a.ParkedNo, b.ParkedNo) })
	for _, head := range due {
		switch {
		case i < 0 || most > 1:
			head.taken = int32(cmd.Events)
		case !t.lacks("parked-charge"):
			head.attempts++
		}
	}
	return events
}

// wait is ListenerWait.
func (t *tables) wait(shard int, by uuid.UUID, now time.Time) (w core.Wait, ok bool) {
	if shard >= len(t.shards) {
		return w, false
	}
	c := t.shards[shard]
	none := uuid.UUID{}
	w = core.Wait{
		Shards: len(t.shards), LeaseNo: c.leaseNo, Resharding: t.reshardTo > 0, Blocked: c.retryAfter.After(now),
		ForeignLease: !c.leaseUntil.Before(now) && !c.leaseUntil.IsZero(),
		Kept:         c.leaseBy == none && c.preferred != none && c.preferred != by, In: -1,
	}
	w.Ready = w.Kept && !w.Blocked && t.hasWork(shard, c, now)
	due := func(at time.Time) { // nothing that is past falls due
		if !at.Before(now) && (w.In < 0 || at.Sub(now) < w.In) {
			w.In = at.Sub(now)
		}
	}
	due(c.retryAfter)
	due(c.leaseUntil)
	for _, p := range t.parked {
		if p.bucket%len(t.shards) == shard && p.retryAfter.After(now) {
			due(p.retryAfter)
		}
	}
	return w, true
}

// reshard takes a step towards another number of shards.
func (t *tables) reshard() (stepped bool) {
	if t.reshardTo == 0 {
		return false
	}
	if t.shards[0].barrier == nil {
		at := t.snapshot()
		for _, c := range t.shards {
			c.barrier = at
		}
		return true
	}
	no := int64(0)
	for _, c := range t.shards {
		if t.lacks("barrier") {
			continue
		}
		if c.inBatch || c.leaseBy != (uuid.UUID{}) || !slices.Equal(c.lo, c.barrier) {
			return false
		}
		no = max(no, c.leaseNo)
	}
	at := t.shards[0].barrier
	t.shards = nil
	for range t.reshardTo {
		t.shards = append(t.shards, &cursor{leaseNo: no + 1, lo: at})
	}
	t.reshardTo = 0
	return true
}
