package core

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
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
	// many events of one lane.
	smallestPiece, FirstPiece, largestPiece = 100, 1000, 32_000
	fastClaim, slowClaim                    = 3 * time.Millisecond, 10 * time.Millisecond
)

// nextPiece returns how large a piece is after one of size, whose claim found f and had more before it. Pieces grow while
// claims are fast, so that a long stretch takes few, and shrink when they are slow. They become smaller than usual only
// when a claim has failed, so that no statement_timeout can stop a walk: where a claim of a usual piece is slow, the
// machine is busy, and less would be as slow.
func nextPiece(size, usual, largest int, f *Found, more bool) int {
	switch {
	case size < usual:
		return min(2*size, usual)
	case f.Took > slowClaim:
		return max(size/2, usual)
	case f.Took < fastClaim && more:
		return min(4*size, largest)
	}
	return size
}

// Walk is how far claims have come in each lane. NewWalk makes one.
type Walk struct {
	lanes   []int32   // sorted
	stages  []stage   // of lanes
	piece   int       // 0 means FirstPiece
	turn    int       // the lane that comes first in the next claim
	all     time.Time // when claims take from every lane again
	partial bool      // the latest claim did not
	trail   time.Duration
	counted int       // events claimed since
	since   time.Time // when the trail was set
}

// NewWalk returns a walk that is at the head of each of lanes.
func NewWalk(lanes []int32) Walk { return Walk{lanes: lanes, stages: make([]stage, len(lanes))} }

// Resume returns a walk that begins in each lane where w has come, and goes on to the end.
func (w *Walk) Resume() Walk {
	from := *w
	from.stages = slices.Clone(w.stages)
	for i := range from.stages {
		from.stages[i].seen = false
	}
	return from
}

// SweepOf returns the walk of a sweep, which takes larger pieces than a claim.
func SweepOf(lanes []int32) *Walk {
	w := NewWalk(lanes)
	w.piece = 2 * FirstPiece
	return &w
}

// Cover makes the walk one of lanes. In those that it has walked already it stays where it is.
func (w *Walk) Cover(lanes []int32) {
	if slices.Equal(w.lanes, lanes) {
		return
	}
	old := *w
	w.lanes, w.stages = lanes, make([]stage, len(lanes))
	for i, n := range lanes {
		if at := old.at(n); at != nil {
			w.stages[i] = *at
		}
	}
}

// at returns how far the walk has come in a lane; nil if it is not one of its own.
func (w *Walk) at(lane int32) *stage {
	if i, is := slices.BinarySearch(w.lanes, lane); is {
		return &w.stages[i]
	}
	return nil
}

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
	Lane  int32
	After Place
	Quota int
	Piece int
}

// Pieces returns the starts of a claim of up to size events that may meet any number of others. It takes as many from
// each lane as from the others. With unseenOnly, the lanes whose end was seen are left out. A claim does not come to all
// lanes if many have a backlog, so those come last that are known to have more.
func (w *Walk) Pieces(size int, unseenOnly bool) []Start {
	if w.piece == 0 {
		w.piece = FirstPiece
	}
	starts := make([]Start, 0, len(w.lanes))
	order := w.inOrder()
	for _, dense := range [...]bool{false, true} {
		for i := range order {
			if at := &w.stages[i]; at.dense == dense && (!unseenOnly || !at.seen) {
				starts = append(starts, Start{Lane: w.lanes[i], After: at.after, Piece: max(w.piece, 2*size)})
			}
		}
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
	for i := range w.stages {
		switch s := &w.stages[i]; {
		case s.dense:
			dense++
		case !s.seen:
			return w.Pieces(size, false)
		}
	}
	order := w.inOrder()
	starts := make([]Start, 0, len(w.lanes))
	all := dense == 0 || !now.Before(w.all)
	quota := size
	if dense > 0 {
		quota = (size + dense - 1) / dense
	}
	for _, more := range [...]bool{false, true} {
		for i := range order {
			if at := &w.stages[i]; at.dense == more && (more || all) {
				starts = append(starts, Start{Lane: w.lanes[i], After: at.after, Quota: quota})
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

// inOrder yields the indexes of the lanes. They take turns in being the first.
func (w *Walk) inOrder() iter.Seq[int] {
	first := w.turn
	w.turn++
	return func(yield func(int) bool) {
		for i := range w.lanes {
			if !yield((first + i) % len(w.lanes)) {
				return
			}
		}
	}
}

// LanesOf returns the lanes of the events of topics that have no turn, and that of rows that were written by hand
// without a lane. It is sorted.
func LanesOf(topics []string) []int32 {
	lanes := []int32{0}
	for _, topic := range topics {
		lanes = append(lanes, topiclane.Of(topic))
	}
	slices.Sort(lanes)
	return slices.Compact(lanes)
}

// Restart sends the walk back to the head of some lanes, or of all.
func (w *Walk) Restart(some ...int32) {
	if len(some) == 0 {
		clear(w.stages)
	}
	for _, n := range some {
		if at := w.at(n); at != nil {
			*at = stage{}
		}
	}
}

// More reports whether the walk has not come to the end of some lane.
func (w *Walk) More() bool {
	return slices.ContainsFunc(w.stages, func(s stage) bool { return !s.seen })
}

// End makes the walk one that has come to the end of every lane, and begins again at the head.
func (w *Walk) End() {
	for i := range w.stages {
		w.stages[i] = stage{seen: true}
	}
}

// Failed notes that a claim failed: perhaps because it took too long.
func (w *Walk) Failed() {
	w.piece = smallestPiece
	for i := range w.stages {
		w.stages[i].dense, w.stages[i].seen = false, false
	}
}

// Seen is a row that a claim has leased.
type Seen struct {
	Lane      int32
	Turn      string // "" means none
	At        Place
	Reclaimed bool // its lease had run out
	Last      bool // this is its last attempt
}

// Found is what a claim has found.
type Found struct {
	Rows []Seen
	Ends map[int32]Place // of pieces, by lane
	TurnsFound
	At   time.Time     // by the clock of the database; zero if nothing is known of the claim
	Took time.Duration // there
}

// Advance moves the walk at now to where the claim q has ended, which found f. Another claim of the walk may have been
// under way at the same time, so a lane is only moved if q began where the walk is, or before, and came further.
func (w *Walk) Advance(now time.Time, q *Claim, f *Found) {
	w.count(len(f.Rows), now)
	w.piece = nextPiece(w.piece, FirstPiece, largestPiece, f, len(f.Ends) > 0)
	o := outcome{q: q, f: f, in: make(map[int32]taken, len(q.Starts))}
	for i := range f.Rows {
		o.add(&f.Rows[i])
	}
	if o.alone || q.Reclaims > 0 && o.reclaimed >= q.Reclaims {
		return // there may be more of them behind these
	}
	visited := o.visited()
	for i, s := range q.Starts {
		at := w.at(s.Lane)
		if at == nil || s.After.Compare(at.after) > 0 {
			continue // sent back since
		}
		next, known := o.next(i, visited, at.dense, w.trail)
		if known && (next.seen || next.after.Compare(at.after) > 0 || s.After == at.after) {
			*at = next
		}
	}
}

// outcome is what the claim q, which found f, says of the lanes.
type outcome struct {
	q         *Claim
	f         *Found
	in        map[int32]taken // by lane
	reclaimed int
	alone     bool // it has found a last attempt, which comes alone
}

// taken is what was found in a lane.
type taken struct {
	n    int
	last Place
}

// add counts a row that was found.
func (o *outcome) add(e *Seen) {
	if e.Reclaimed {
		o.reclaimed++
		o.alone = o.alone || e.Last
	}
	lane := o.in[e.Lane]
	if lane.n++; e.At.Compare(lane.last) > 0 {
		lane.last = e.At
	}
	o.in[e.Lane] = lane
}

// full reports whether the claim found as many events as it may take.
func (o *outcome) full() bool { return len(o.f.Rows) >= o.q.Size }

// visited returns how many starts the claim has come to.
func (o *outcome) visited() int {
	n := len(o.q.Starts)
	if o.full() && !o.q.InPieces() { // it has not come to the lanes behind the one that filled it
		for n > 0 && o.in[o.q.Starts[n-1].Lane].n == 0 {
			n--
		}
	}
	return n
}

// next returns the stage of the lane of start i after the claim, which has come to visited starts. dense is what is
// known of the lane. known is false if the claim says nothing of it.
func (o *outcome) next(i, visited int, dense bool, trail time.Duration) (next stage, known bool) {
	s := &o.q.Starts[i]
	found, last := o.in[s.Lane].n, o.in[s.Lane].last
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
