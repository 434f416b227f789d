package queue

import (
	"bytes"
	"cmp"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/tenantlane"
)

// place is a position in the order in which the events of a lane are claimed. The zero value is before all events.
type place struct {
	due time.Time
	id  uuid.UUID
}

func placeOf(c *Claimed) place { return place{c.due, c.ID} }

func (p place) compare(o place) int {
	return cmp.Or(p.due.Compare(o.due), bytes.Compare(p.id[:], o.id[:]))
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
	smallestPiece, firstPiece, largestPiece = 100, 1000, 32_000
	fastClaim, slowClaim                    = 3 * time.Millisecond, 10 * time.Millisecond
)

// walk is how far claims have come in each lane. The zero value is at the head of every lane.
type walk struct {
	in      lanes // that it walks; 0 means all
	lanes   [tenantlane.Count]stage
	piece   int       // 0 means firstPiece
	turn    int       // the lane that comes first in the next claim
	all     time.Time // when claims take from every lane again
	partial bool      // the latest claim did not
	trail   time.Duration
	counted int       // events claimed since
	since   time.Time // when the trail was set
}

// count measures how fast the walk claims, and sets its trail.
func (w *walk) count(n int, now time.Time) {
	w.counted += n
	if took := now.Sub(w.since); w.trail == 0 || took > longestTrail/4 {
		w.trail = longestTrail
		if w.counted > 0 && !w.since.IsZero() {
			w.trail = min(max(took*trailEvents/time.Duration(w.counted), shortestTrail), longestTrail)
		}
		w.counted, w.since = 0, now
	}
}

// stage is a walk's position in one lane.
type stage struct {
	after place
	seen  bool // to its end. The next claim begins the trail before that.
	dense bool // the latest claim found as many events as it asked for
}

// start is where a claim begins in a lane, and how many events it takes from there at first. It ends after piece events,
// whether they are claimable or not; 0 means at no particular one.
type start struct {
	lane  int16
	after place
	quota int
	piece int
}

// pieces returns the starts of a claim of up to size events that may meet any number of others. It takes as many from each
// lane as from the others. With only, the lanes whose end was seen are left out.
func (w *walk) pieces(size int, only bool) []start {
	if w.piece == 0 {
		w.piece = firstPiece
	}
	starts := make([]start, 0, tenantlane.Count)
	for _, n := range w.order() {
		now := &w.lanes[n]
		if only && now.seen {
			continue
		}
		starts = append(starts, start{lane: n, after: now.after, piece: max(w.piece, 2*size)})
	}
	for i := range starts {
		starts[i].quota = max(size/len(starts), 1)
	}
	return starts
}

// onward returns the starts of a claim of up to size events in lanes whose end was seen, or whose claimable events are
// close together. If there are others, it returns those of pieces. The lanes that are known to have more come last and
// share the batch. The others are left out for restEvery at most, because each takes a scan.
func (w *walk) onward(size int, now time.Time) []start {
	dense := 0
	for i := range w.lanes {
		switch s := &w.lanes[i]; {
		case !w.in.has(int16(i)):
		case s.dense:
			dense++
		case !s.seen:
			return w.pieces(size, false)
		}
	}
	order := w.order()
	starts := make([]start, 0, tenantlane.Count)
	all := dense == 0 || !now.Before(w.all)
	quota := size
	if dense > 0 {
		quota = (size + dense - 1) / dense
	}
	for _, more := range [...]bool{false, true} {
		for _, n := range order {
			if w.lanes[n].dense == more && (more || all) {
				starts = append(starts, start{lane: n, after: w.lanes[n].after, quota: quota})
			}
		}
	}
	if w.partial = !all; all {
		w.all = now.Add(restEvery)
	}
	return starts
}

// restEvery is how long a backlog in some lanes keeps claims out of the others.
const restEvery = 10 * time.Millisecond

// order returns the lanes. They take turns in being the first.
func (w *walk) order() []int16 {
	order := make([]int16, 0, tenantlane.Count)
	for i := range tenantlane.Count {
		if n := int16((w.turn + i) % tenantlane.Count); w.in.has(n) {
			order = append(order, n)
		}
	}
	w.turn++
	return order
}

// lanes is a set of lanes. The zero value is all of them.
type lanes uint32

func (l lanes) has(n int16) bool { return l == 0 || l&(1<<n) != 0 }

// lanesOf returns the lanes of events of topics that belong to one of tenants: of both, and of the topic, because a topic
// may have been fair by tenant at one time and not at another. Rows that were written by hand without a lane are in lane 0.
func lanesOf(topics []string, tenants []uuid.UUID) (l lanes) {
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

// restart sends the walk back to the head of some lanes, or of all.
func (w *walk) restart(some ...int16) {
	if len(some) == 0 {
		w.lanes = [tenantlane.Count]stage{}
	}
	for _, n := range some {
		w.lanes[n] = stage{}
	}
}

// more reports whether the walk has not come to the end of some lane.
func (w *walk) more() bool {
	for n, s := range w.lanes {
		if !s.seen && w.in.has(int16(n)) {
			return true
		}
	}
	return false
}

// end makes the walk one that has come to the end of every lane, and begins again at the head.
func (w *walk) end() {
	for i := range w.lanes {
		w.lanes[i] = stage{seen: true}
	}
}

// failed notes that a claim failed: perhaps because it took too long.
func (w *walk) failed() {
	w.piece = smallestPiece
	for i := range w.lanes {
		w.lanes[i].dense, w.lanes[i].seen = false, false
	}
}

// advance moves the walk to where the claim x has ended. Another claim of the walk may have been under way at the same
// time, so a lane is only moved if x began where the walk is, or before, and came further.
func (w *walk) advance(x *roundTrip) {
	c := x.claim
	w.count(len(x.claimed), time.Now())
	switch {
	case x.claimTook > slowClaim:
		w.piece = max(w.piece/2, smallestPiece)
	case x.claimTook < fastClaim && len(x.ends) > 0:
		w.piece = min(w.piece*4, largestPiece)
	}
	var last [tenantlane.Count]place
	var found [tenantlane.Count]int
	reclaimed := 0
	leased := x.leased()
	for _, e := range leased {
		if e.Reclaimed {
			reclaimed++
			if e.Attempt >= e.MaxAttempts {
				return // it came alone
			}
		}
		found[e.lane]++
		if p := placeOf(e); p.compare(last[e.lane]) > 0 {
			last[e.lane] = p
		}
	}
	if c.reclaims > 0 && reclaimed >= c.reclaims {
		return // there may be more of them behind these
	}
	full := len(leased) >= c.size
	visited := len(c.starts)
	if full && !c.inPieces() { // it has not come to the lanes behind the one that filled it
		for visited > 0 && found[c.starts[visited-1].lane] == 0 {
			visited--
		}
	}
	for i, s := range c.starts {
		now := &w.lanes[s.lane]
		if s.after.compare(now.after) > 0 {
			continue // sent back since
		}
		next := stage{after: last[s.lane]}
		end, ended := x.ends[s.lane]
		switch {
		case found[s.lane] >= s.quota:
			next.dense = true
		case found[s.lane] == 0 && (i >= visited || ended && end == place{} || full && reclaimed > 0):
			continue
		case full && (reclaimed > 0 || !c.inPieces() && i == visited-1):
			next.dense = now.dense
		case ended:
			next.after = end
		default:
			*now = stage{after: place{x.claimedAt.Add(-w.trail), lastID}, seen: true}
			continue
		}
		if next.after.compare(now.after) > 0 || s.after == now.after {
			*now = next
		}
	}
}

// columns are starts, for SQL.
type columns struct {
	lanes          []int16
	dues           []pgtype.Timestamptz
	ids            []pgtype.UUID
	quotas, pieces []int32
}

func columnsOf(starts []start) (c columns) {
	for _, s := range starts {
		due := pgvalue.Time(s.after.due)
		if !due.Valid {
			due = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
		}
		c.lanes, c.dues, c.ids = append(c.lanes, s.lane), append(c.dues, due), append(c.ids, pgvalue.UUID(s.after.id))
		c.quotas, c.pieces = append(c.quotas, int32(s.quota)), append(c.pieces, int32(s.piece))
	}
	return c
}

// Cursor is how far the claims of a Store have come. The zero value is the beginning. It must not be used concurrently.
type Cursor struct {
	walk   walk
	paused *pauses // what the walk has passed over
}

// Done reports whether the claims have come to the events that are not due.
func (c *Cursor) Done() bool { return !c.walk.more() }
