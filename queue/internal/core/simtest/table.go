package coresim

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// row is an event in the table queue, or what has become of it.
type row struct {
	id          uuid.UUID
	topic       string
	destination string // of a topic whose events say it
	tenant      uuid.UUID
	lane        int32
	turn        string
	due         time.Time
	attempts    int
	max         int
	claimNo     int
	lockedBy    *proc
	lockedUntil time.Time // zero if it is not leased
	busy        *proc     // whose transaction, not committed yet, has locked the row
	final       string    // "delivered" or "dead"
	changed     time.Time // when it became visible, or a claim let it go
	visible     bool      // the transaction that has enqueued it is committed

	handled     int  // how often a handler or a publisher has returned success
	unexplained int  // attempts that no failure and no lost lease has used up
	abandoned   bool // leased for hours by a process that has ended
}

func (r *row) place() core.Place { return core.Place{Due: r.due, ID: r.id} }

func (r *row) leased() bool { return !r.lockedUntil.IsZero() }

// table is a toy of the tables of one namespace.
type table struct {
	rows   []*row // those that are not final, in the order of their places
	all    []*row
	pauses *core.Pauses
	starts map[core.Turn][]time.Time // the latest times of those of each turn
}

func compare(a, b *row) int { return cmp.Or(a.due.Compare(b.due), bytes.Compare(a.id[:], b.id[:])) }

// sort restores the order of rows and removes what is final.
func (t *table) sort() {
	t.rows = slices.DeleteFunc(t.rows, func(r *row) bool { return r.final != "" })
	slices.SortFunc(t.rows, compare)
}

// claim returns what the claim q takes at now, and what its sender learns. It does what EventClaim and EventClaimFresh
// do.
func (t *table) claim(now time.Time, q *core.Claim) (picked []*row, found core.Found) {
	if q.Turns != nil {
		return t.claimTurns(now, q)
	}
	found.At, found.Took = now, time.Millisecond
	if !q.InPieces() && q.Reclaims == 0 {
		return t.claimFresh(now, q), found
	}
	m := t.meet(now, q)
	picked = m.pick()
	edge := core.Place{Due: now, ID: uuid.Max}
	if len(picked) >= q.Size {
		edge = picked[len(picked)-1].place()
	}
	found.Ends = m.ends()
	again := m.again(edge)
	for _, r := range again {
		if r.attempts+1 >= r.max { // it comes alone
			return []*row{r}, found
		}
	}
	picked = append(picked, again...)
	slices.SortFunc(picked, compare)
	return picked[:min(len(picked), q.Size)], found
}

// claimFresh is EventClaimFresh: it takes events that are not leased, up to the quota of each lane.
func (t *table) claimFresh(now time.Time, q *core.Claim) (picked []*row) {
	for _, s := range q.Starts {
		for n := 0; n < s.Quota && len(picked) < q.Size; n++ {
			i := slices.IndexFunc(t.rows, func(r *row) bool {
				return r.passedBy(now, s) && r.busy == nil && !r.leased() && r.allowed(q) && !slices.Contains(picked, r)
			})
			if i < 0 {
				break
			}
			picked = append(picked, t.rows[i])
		}
	}
	slices.SortFunc(picked, compare)
	return picked
}

// passedBy reports whether a claim that begins at s comes to r, whether it is claimable or not.
func (r *row) passedBy(now time.Time, s core.Start) bool {
	return r.visible && r.lane == s.Lane && !r.due.After(now) && r.place().Compare(s.After) > 0
}

// allowed reports whether q may take r if no other process has it.
func (r *row) allowed(q *core.Claim) bool {
	return r.attempts < r.max && slices.Contains(q.Topics, r.topic) &&
		!q.Paused.Event(r.topic, uuid.NullUUID{UUID: r.tenant, Valid: true})
}

// ranOut reports whether the lease of r is over, and q may take r again.
func (r *row) ranOut(now time.Time, q *core.Claim) bool {
	return q.Reclaims > 0 && r.leased() && r.lockedUntil.Before(now) && !slices.Contains(q.InFlight, r.id)
}

// claimable says what is to be known of a row that a claim meets.
type claimable struct {
	*row
	is, fresh, ended bool
}

// meeting is what EventClaim meets.
type meeting struct {
	q      *core.Claim
	met    map[int32][]claimable // by lane
	shared []claimable           // the fresh ones that share the batch, those that come first in their lanes first
}

// meet goes through the lanes, a piece of each, as far as the batch may need.
func (t *table) meet(now time.Time, q *core.Claim) *meeting {
	m := &meeting{q: q, met: make(map[int32][]claimable)}
	places := make(map[*row]int) // of those that are fresh, in their lanes
	for _, s := range q.Starts {
		n, fresh := 0, 0
		for _, r := range t.rows {
			if n == s.Piece || m.enough(s.Lane) {
				break
			}
			if !r.passedBy(now, s) {
				continue
			}
			n++
			is := (!r.leased() || r.ranOut(now, q)) && r.allowed(q)
			c := claimable{r, is, !r.leased(), n == s.Piece}
			if c.is || c.ended {
				m.met[s.Lane] = append(m.met[s.Lane], c)
			}
			if c.is && c.fresh {
				fresh++
				places[r] = fresh
				m.shared = append(m.shared, c)
			}
		}
	}
	slices.SortFunc(m.shared, func(a, b claimable) int {
		return cmp.Or(cmp.Compare(places[a.row], places[b.row]), compare(a.row, b.row))
	})
	m.shared = m.shared[:min(len(m.shared), q.Size)]
	return m
}

// enough reports whether the claim needs no more of a lane.
func (m *meeting) enough(lane int32) bool { return len(m.met[lane]) >= m.q.Size+m.q.Reclaims }

// pick returns the fresh events that nobody has locked.
func (m *meeting) pick() (picked []*row) {
	for _, c := range m.shared {
		if c.busy == nil {
			picked = append(picked, c.row)
		}
	}
	slices.SortFunc(picked, compare)
	return picked
}

// again returns the events up to edge whose lease has run out, as many as the claim may take.
func (m *meeting) again(edge core.Place) (again []*row) {
	for _, all := range m.met {
		for _, c := range all {
			if c.is && !c.fresh && c.busy == nil && c.place().Compare(edge) <= 0 {
				again = append(again, c.row)
			}
		}
	}
	slices.SortFunc(again, compare)
	return again[:min(len(again), m.q.Reclaims)]
}

// ends returns where the claim has ended in the lanes that may have more behind.
func (m *meeting) ends() map[int32]core.Place {
	inShare, last := make(map[int32]int), make(map[int32]core.Place)
	for _, c := range m.shared {
		inShare[c.lane]++
		if c.place().Compare(last[c.lane]) > 0 {
			last[c.lane] = c.place()
		}
	}
	ends := make(map[int32]core.Place)
	for lane, all := range m.met {
		fresh := 0
		for _, c := range all {
			if c.is && c.fresh {
				fresh++
			}
		}
		end := all[len(all)-1]
		switch {
		case fresh > inShare[lane]:
			ends[lane] = last[lane]
		case m.enough(lane) || end.ended:
			ends[lane] = end.place()
		}
	}
	return ends
}
