package simtest

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// Row is an event in the table queue, or what has become of it.
type Row struct {
	ID          uuid.UUID
	Topic       string
	Tenant      uuid.UUID
	Version     int
	Lane        int32
	Turn        string
	Due         time.Time
	Attempts    int
	Max         int
	ClaimNo     int
	LockedBy    uuid.UUID
	LockedUntil time.Time // zero if it is not leased
	Updated     time.Time
	Final       string // "delivered" or "dead"

	busy    *proc // whose transaction, not committed yet, has locked the row
	history       // what a simulation knows of it
}

// Query is what a claim of one worker takes.
type Query struct {
	*core.Claim
	Version int // the newest that the worker knows, of each topic
}

// Table is a model of the tables of one namespace.
type Table struct {
	rows    []*Row // those that are not final, in the order of their places
	all     []*Row
	pauses  *core.Pauses
	starts  map[core.Turn][]time.Time // the latest times of those of each turn
	running int                       // how many events of a turn with limits may be leased
	without string                    // the guard that is left out
}

// NewTable returns empty tables.
func NewTable() *Table {
	return &Table{pauses: core.NoPauses, starts: make(map[core.Turn][]time.Time), running: maxRunning}
}

// Add adds rows that are committed.
func (t *Table) Add(rows ...*Row) {
	t.all, t.rows = append(t.all, rows...), append(t.rows, rows...)
	t.sort()
}

// All returns every event that was added.
func (t *Table) All() []*Row { return t.all }

// Sort restores the order of the rows after a change by hand.
func (t *Table) Sort() { t.sort() }

// Pending returns the events that are not final, in the order of their places.
func (t *Table) Pending() []*Row { return t.rows }

// Leased reports whether r has a lease, which may have run out.
func (r *Row) Leased() bool { return r.leased() }

// lacks reports whether a guard is left out.
func (t *Table) lacks(guard string) bool { return t.without == guard }

func (r *Row) place() core.Place { return core.Place{Due: r.Due, ID: r.ID} }

func (r *Row) leased() bool { return !r.LockedUntil.IsZero() }

func compare(a, b *Row) int { return cmp.Or(a.Due.Compare(b.Due), bytes.Compare(a.ID[:], b.ID[:])) }

// sort restores the order of rows and removes what is final.
func (t *Table) sort() {
	t.rows = slices.DeleteFunc(t.rows, func(r *Row) bool { return r.Final != "" })
	slices.SortFunc(t.rows, compare)
}

// Claim returns what the claim q takes at now, and what its sender learns. It does what EventClaim and EventClaimFresh
// do.
func (t *Table) Claim(now time.Time, q *Query) (picked []*Row, found core.Found) {
	if q.Turns != nil {
		return t.claimTurns(now, q)
	}
	found.At, found.Took = now, time.Millisecond
	if !q.InPieces() && q.Reclaims == 0 {
		return t.claimFresh(now, q), found
	}
	m := t.meet(now, q)
	picked = m.pick(t)
	edge := core.Place{Due: now, ID: uuid.Max}
	if len(picked) >= q.Size {
		edge = picked[len(picked)-1].place()
	}
	found.Ends = m.ends()
	again := m.again(t, edge)
	for _, r := range again {
		if r.Attempts+1 >= r.Max && !t.lacks("claim-alone") { // it comes alone
			return []*Row{r}, found
		}
	}
	picked = append(picked, again...)
	slices.SortFunc(picked, compare)
	return picked[:min(len(picked), q.Size)], found
}

// claimFresh is EventClaimFresh: it takes events that are not leased, up to the quota of each lane.
func (t *Table) claimFresh(now time.Time, q *Query) (picked []*Row) {
	for _, s := range q.Starts {
		for n := 0; n < s.Quota && len(picked) < q.Size; n++ {
			i := slices.IndexFunc(t.rows, func(r *Row) bool {
				return t.passes(r, now, s) && t.unlocked(r) && !r.leased() && t.allowed(r, q) && !slices.Contains(picked, r)
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

// passes reports whether a claim that begins at s comes to r, whether it is claimable or not.
func (t *Table) passes(r *Row, now time.Time, s core.Start) bool {
	return r.Lane == s.Lane && (!r.Due.After(now) || t.lacks("claim-due")) && r.place().Compare(s.After) > 0
}

// allowed reports whether q may take r if no other process has it.
func (t *Table) allowed(r *Row, q *Query) bool {
	return (r.Attempts < r.Max || t.lacks("claim-attempts")) && slices.Contains(q.Topics, r.Topic) &&
		(r.Version <= q.Version || t.lacks("claim-version")) &&
		(t.lacks("claim-paused") || !q.Paused.Event(r.Topic, uuid.NullUUID{UUID: r.Tenant, Valid: true}))
}

// ranOut reports whether the lease of r is over, and q may take r again.
func (t *Table) ranOut(r *Row, now time.Time, q *Query) bool {
	return q.Reclaims > 0 && r.leased() && (r.LockedUntil.Before(now) || t.lacks("claim-lease")) &&
		!slices.Contains(q.InFlight, r.ID)
}

// unlocked reports whether no transaction has r locked.
func (t *Table) unlocked(r *Row) bool { return r.busy == nil || t.lacks("claim-lock") }

// claimable says what is to be known of a row that a claim meets.
type claimable struct {
	*Row
	is, fresh, ended bool
}

// meeting is what EventClaim meets.
type meeting struct {
	q      *Query
	met    map[int32][]claimable // by lane
	shared []claimable           // the fresh ones that share the batch, those that come first in their lanes first
	n      int                   // of met
	passed int32                 // the lane where it has stopped because it has met enough in all
	beyond []int32               // those that it has not come to
}

// most is how many events EventClaim meets at most, in batches.
const most = 8

// meet goes through the lanes, a piece of each, as far as the batch may need.
func (t *Table) meet(now time.Time, q *Query) *meeting {
	m := &meeting{q: q, met: make(map[int32][]claimable)}
	places := make(map[*Row]int) // of those that are fresh, in their lanes
	for _, s := range q.Starts {
		if m.full() {
			m.beyond = append(m.beyond, s.Lane)
			continue
		}
		n, fresh := 0, 0
		for _, r := range t.rows {
			if n == s.Piece || m.enough(s.Lane) || m.full() {
				break
			}
			if !t.passes(r, now, s) {
				continue
			}
			n++
			is := (!r.leased() || t.ranOut(r, now, q)) && t.allowed(r, q)
			c := claimable{r, is, !r.leased(), n == s.Piece}
			if c.is || c.ended {
				m.met[s.Lane] = append(m.met[s.Lane], c)
				m.n++
			}
			if c.is && c.fresh {
				fresh++
				places[r] = fresh
				m.shared = append(m.shared, c)
			}
		}
		if m.full() {
			m.passed = s.Lane
		}
	}
	slices.SortFunc(m.shared, func(a, b claimable) int {
		return cmp.Or(cmp.Compare(places[a.Row], places[b.Row]), compare(a.Row, b.Row))
	})
	m.shared = m.shared[:min(len(m.shared), q.Size)]
	return m
}

// enough reports whether the claim needs no more of a lane.
func (m *meeting) enough(lane int32) bool { return len(m.met[lane]) >= m.q.Size+m.q.Reclaims }

// full reports whether the claim has met enough in all.
func (m *meeting) full() bool { return m.n >= most*(m.q.Size+m.q.Reclaims) }

// pick returns the fresh events that nobody has locked.
func (m *meeting) pick(t *Table) (picked []*Row) {
	for _, c := range m.shared {
		if t.unlocked(c.Row) {
			picked = append(picked, c.Row)
		}
	}
	slices.SortFunc(picked, compare)
	return picked
}

// again returns the events up to edge whose lease has run out, as many as the claim may take.
func (m *meeting) again(t *Table, edge core.Place) (again []*Row) {
	for _, all := range m.met {
		for _, c := range all {
			if c.is && !c.fresh && t.unlocked(c.Row) && c.place().Compare(edge) <= 0 {
				again = append(again, c.Row)
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
		inShare[c.Lane]++
		if c.place().Compare(last[c.Lane]) > 0 {
			last[c.Lane] = c.place()
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
		case m.enough(lane) || end.ended || m.full() && lane == m.passed:
			ends[lane] = end.place()
		}
	}
	for _, lane := range m.beyond {
		ends[lane] = core.Place{}
	}
	return ends
}
