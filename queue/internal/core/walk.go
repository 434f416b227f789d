package core

import (
	"bytes"
	"cmp"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/postgres/tenantlane"
)

// Place is a position in the order in which the events of a lane are claimed. The zero value is before all events.
type Place struct {
	Due time.Time
	ID  uuid.UUID
}

// Compare orders places.
func (p Place) Compare(o Place) int {
	return cmp.Or(p.Due.Compare(o.Due), bytes.Compare(p.ID[:], o.ID[:]))
}

// lastID is the id after every other of the same due time.
var lastID = uuid.Max

const (
	// The trail is how far behind the clock of the database a walk begins again in a lane that it has seen to its end.
	// Events fall due in one order and are committed in another: an event that is committed later than this after its
	// due time is found by a look from the head. What a walk has claimed within the trail it meets again, as row versions
	// that PostgreSQL may not be able to remove. So the trail is as long as it takes to claim trailEvents, within bounds.
	longestTrail, shortestTrail = time.Second, 50 * time.Millisecond
	trailEvents                 = 1000

	// A walk ends after a piece, because it may pass any number of events that are not claimable here. A piece is that
	// many events of one lane. It grows while a claim is fast, so that a long stretch takes few claims, and shrinks when
	// it is slow, so that no statement_timeout can stop the walk.
	smallestPiece, FirstPiece, largestPiece = 100, 1000, 32_000
	fastClaim, slowClaim                    = 3 * time.Millisecond, 10 * time.Millisecond
)

// Walk is how far claims have come in each lane. The zero value is at the head of every lane.
type Walk struct {
	In      Lanes // that it walks; 0 means all
	lanes   [tenantlane.Count]stage
	piece   int       // 0 means FirstPiece
	turn    int       // the lane that comes first in the next claim
	all     time.Time // when claims take from every lane again
	partial bool      // the latest claim did not
	trail   time.Duration
	counted int       // events claimed since
	since   time.Time // when the trail was set
}

// SweepOf returns the walk of a sweep, which takes larger pieces than a claim.
func SweepOf(in Lanes) *Walk { return &Walk{In: in, piece: 2 * FirstPiece} }

// Piece is how many events of one lane the walk passes at once.
func (w *Walk) Piece() int { return w.piece }

// count measures how fast the walk claims, and sets its trail.
func (w *Walk) count(n int, now time.Time) {
	w.counted += n
	if took := now.Sub(w.since); w.trail == 0 || took > longestTrail/4 {
		w.trail = longestTrail
		if w.counted > 0 && !w.since.IsZero() {
			w.trail = min(max(took*trailEvents/time.Duration(w.counted), shortestTrail), longestTrail)
		}
		w.counted, w.since = 0, now
	}
}

// stage is how far a walk has come in one lane. It goes from the head of the lane to its end. There the lane is seen,
// and the walk waits the trail before the clock for what is enqueued or falls due.
type stage struct {
	after Place
	seen  bool // to its end. The next claim begins the trail before that.
	dense bool // the latest claim found as many events as it asked for
}

// Start is where a claim begins in a lane, and how many events it takes from there at first. It ends after piece
// events, whether they are claimable or not; 0 means that only the quota ends it.
type Start struct {
	Lane  int16
	After Place
	Quota int
	Piece int
}

// Pieces returns the starts of a claim of up to size events that may meet any number of others. It takes as many from
// each lane as from the others. With unseenOnly, the lanes whose end was seen are left out.
func (w *Walk) Pieces(size int, unseenOnly bool) []Start {
	if w.piece == 0 {
		w.piece = FirstPiece
	}
	starts := make([]Start, 0, tenantlane.Count)
	for _, n := range w.order() {
		now := &w.lanes[n]
		if unseenOnly && now.seen {
			continue
		}
		starts = append(starts, Start{Lane: n, After: now.after, Piece: max(w.piece, 2*size)})
	}
	for i := range starts {
		starts[i].Quota = max(size/len(starts), 1)
	}
	return starts
}

// onward returns the starts of a claim of up to size events in lanes whose end was seen, or whose claimable events are
// close together. If there are others, it returns those of pieces. The lanes that are known to have more come last and
// share the batch. The others are left out for othersEvery at most, because each takes a scan.
func (w *Walk) onward(size int, now time.Time) []Start {
	dense := 0
	for i := range w.lanes {
		switch s := &w.lanes[i]; {
		case !w.In.Has(int16(i)):
		case s.dense:
			dense++
		case !s.seen:
			return w.Pieces(size, false)
		}
	}
	order := w.order()
	starts := make([]Start, 0, tenantlane.Count)
	all := dense == 0 || !now.Before(w.all)
	quota := size
	if dense > 0 {
		quota = (size + dense - 1) / dense
	}
	for _, more := range [...]bool{false, true} {
		for _, n := range order {
			if w.lanes[n].dense == more && (more || all) {
				starts = append(starts, Start{Lane: n, After: w.lanes[n].after, Quota: quota})
			}
		}
	}
	if w.partial = !all; all {
		w.all = now.Add(othersEvery)
	}
	return starts
}

// othersEvery is how long a backlog in some lanes keeps claims out of the others.
const othersEvery = 10 * time.Millisecond

// order returns the lanes. They take turns in being the first.
func (w *Walk) order() []int16 {
	order := make([]int16, 0, tenantlane.Count)
	for i := range tenantlane.Count {
		if n := int16((w.turn + i) % tenantlane.Count); w.In.Has(n) {
			order = append(order, n)
		}
	}
	w.turn++
	return order
}

// Lanes is a set of lanes. The zero value is all of them.
type Lanes uint32

// Has reports whether n is one of them.
func (l Lanes) Has(n int16) bool { return l == 0 || l&(1<<n) != 0 }

// LanesOf returns the lanes of events of topics that belong to one of tenants: of both, and of the topic, because a
// topic may have been fair by tenant at one time and not at another. Rows that were written by hand without a lane are
// in lane 0.
func LanesOf(topics []string, tenants []uuid.UUID) (l Lanes) {
	if len(topics) == 0 || len(tenants) == 0 {
		return 0
	}
	l = 1
	for _, topic := range topics {
		l |= 1 << tenantlane.Of(topic, uuid.NullUUID{})
		for _, tenant := range tenants {
			l |= 1 << tenantlane.Of(topic, uuid.NullUUID{UUID: tenant, Valid: true})
		}
	}
	return l
}

// Restart sends the walk back to the head of some lanes, or of all.
func (w *Walk) Restart(some ...int16) {
	if len(some) == 0 {
		w.lanes = [tenantlane.Count]stage{}
	}
	for _, n := range some {
		w.lanes[n] = stage{}
	}
}

// More reports whether the walk has not come to the end of some lane.
func (w *Walk) More() bool {
	for n, s := range w.lanes {
		if !s.seen && w.In.Has(int16(n)) {
			return true
		}
	}
	return false
}

// End makes the walk one that has come to the end of every lane, and begins again at the head.
func (w *Walk) End() {
	for i := range w.lanes {
		w.lanes[i] = stage{seen: true}
	}
}

// Failed notes that a claim failed: perhaps because it took too long.
func (w *Walk) Failed() {
	w.piece = smallestPiece
	for i := range w.lanes {
		w.lanes[i].dense, w.lanes[i].seen = false, false
	}
}

// Seen is a row that a claim has leased.
type Seen struct {
	Lane      int16
	At        Place
	Reclaimed bool // its lease had run out
	Last      bool // this is its last attempt
}

// Found is what a claim has found.
type Found struct {
	Rows []Seen
	Ends map[int16]Place // of pieces, by lane
	At   time.Time       // by the clock of the database; zero if nothing is known of the claim
	Took time.Duration   // there
}

// Advance moves the walk at now to where the claim q has ended, which found f. Another claim of the walk may have been
// under way at the same time, so a lane is only moved if q began where the walk is, or before, and came further.
func (w *Walk) Advance(now time.Time, q *Claim, f *Found) {
	w.count(len(f.Rows), now)
	w.fitPiece(f)
	o := outcome{q: q, f: f}
	for i := range f.Rows {
		o.add(&f.Rows[i])
	}
	if o.alone || q.Reclaims > 0 && o.reclaimed >= q.Reclaims {
		return // there may be more of them behind these
	}
	visited := o.visited()
	for i, s := range q.Starts {
		at := &w.lanes[s.Lane]
		if s.After.Compare(at.after) > 0 {
			continue // sent back since
		}
		next, known := o.next(i, visited, at.dense, w.trail)
		if known && (next.seen || next.after.Compare(at.after) > 0 || s.After == at.after) {
			*at = next
		}
	}
}

// fitPiece makes the pieces smaller after a slow claim, and larger after a fast one that they have ended.
func (w *Walk) fitPiece(f *Found) {
	switch {
	case f.Took > slowClaim:
		w.piece = max(w.piece/2, smallestPiece)
	case f.Took < fastClaim && len(f.Ends) > 0:
		w.piece = min(w.piece*4, largestPiece)
	}
}

// outcome is what the claim q, which found f, says of the lanes.
type outcome struct {
	q         *Claim
	f         *Found
	found     [tenantlane.Count]int
	last      [tenantlane.Count]Place // of those found
	reclaimed int
	alone     bool // it has found a last attempt, which comes alone
}

// add counts a row that was found.
func (o *outcome) add(e *Seen) {
	if e.Reclaimed {
		o.reclaimed++
		o.alone = o.alone || e.Last
	}
	o.found[e.Lane]++
	if e.At.Compare(o.last[e.Lane]) > 0 {
		o.last[e.Lane] = e.At
	}
}

// full reports whether the claim found as many events as it may take.
func (o *outcome) full() bool { return len(o.f.Rows) >= o.q.Size }

// visited returns how many starts the claim has come to.
func (o *outcome) visited() int {
	n := len(o.q.Starts)
	if o.full() && !o.q.InPieces() { // it has not come to the lanes behind the one that filled it
		for n > 0 && o.found[o.q.Starts[n-1].Lane] == 0 {
			n--
		}
	}
	return n
}

// next returns the stage of the lane of start i after the claim, which has come to visited starts. dense is what is
// known of the lane. known is false if the claim says nothing of it.
func (o *outcome) next(i, visited int, dense bool, trail time.Duration) (next stage, known bool) {
	s := &o.q.Starts[i]
	found, last := o.found[s.Lane], o.last[s.Lane]
	end, ended := o.f.Ends[s.Lane]
	switch {
	case found >= s.Quota:
		return stage{after: last, dense: true}, true
	case found == 0 && (i >= visited || ended && end == Place{} || o.full() && o.reclaimed > 0):
		return stage{}, false
	case o.full() && (o.reclaimed > 0 || !o.q.InPieces() && i == visited-1):
		return stage{after: last, dense: dense}, true
	case ended:
		return stage{after: end}, true
	}
	return stage{after: Place{o.f.At.Add(-trail), lastID}, seen: true}, true
}
