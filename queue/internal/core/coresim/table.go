package coresim

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/postgres/tenantlane"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// row is an event in the table queue, or what has become of it.
type row struct {
	id          uuid.UUID
	topic       string
	destination string // of a topic whose events say it
	tenant      uuid.UUID
	lane        int16
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
}

func compare(a, b *row) int { return cmp.Or(a.due.Compare(b.due), bytes.Compare(a.id[:], b.id[:])) }

// sort restores the order of rows and removes what is final.
func (t *table) sort() {
	t.rows = slices.DeleteFunc(t.rows, func(r *row) bool { return r.final != "" })
	slices.SortFunc(t.rows, compare)
}

// claimable says what is to be known of a row that a claim meets.
type claimable struct {
	*row
	is, fresh, ended bool
}

// claim returns what the claim q of p takes at now, and what p learns. It does what EventClaim and EventClaimFresh do.
func (t *table) claim(now time.Time, p *proc, q *core.Claim) (picked []*row, found core.Found) {
	found.At, found.Took = now, time.Millisecond
	can := func(r *row, reclaims int) bool {
		fresh := !r.leased()
		again := reclaims > 0 && r.leased() && r.lockedUntil.Before(now) && !slices.Contains(q.InFlight, r.id)
		return (fresh || again) && r.attempts < r.max && slices.Contains(q.Topics, r.topic) &&
			!q.Paused.Event(r.topic, uuid.NullUUID{UUID: r.tenant, Valid: true})
	}
	if !q.InPieces() && q.Reclaims == 0 {
		for _, s := range q.Starts {
			for n := 0; n < s.Quota && len(picked) < q.Size; n++ {
				i := slices.IndexFunc(t.rows, func(r *row) bool {
					return r.visible && r.lane == s.Lane && !r.due.After(now) && r.place().Compare(s.After) > 0 &&
						r.busy == nil &&
						can(r, 0) && !slices.Contains(picked, r)
				})
				if i < 0 {
					break
				}
				picked = append(picked, t.rows[i])
			}
		}
		slices.SortFunc(picked, compare)
		return picked, found
	}
	met := make(map[int16][]claimable)
	var shared []claimable // with their places in the lane
	places := make(map[*row]int)
	for _, s := range q.Starts {
		n, fresh := 0, 0
		for _, r := range t.rows {
			if n == s.Piece || len(met[s.Lane]) == q.Size+q.Reclaims {
				break
			}
			if !r.visible || r.lane != s.Lane || r.due.After(now) || r.place().Compare(s.After) <= 0 {
				continue
			}
			n++
			m := claimable{r, can(r, q.Reclaims), !r.leased(), n == s.Piece}
			if m.is || m.ended {
				met[s.Lane] = append(met[s.Lane], m)
			}
			if m.is && m.fresh {
				fresh++
				places[r] = fresh
				shared = append(shared, m)
			}
		}
	}
	slices.SortFunc(shared, func(a, b claimable) int {
		return cmp.Or(cmp.Compare(places[a.row], places[b.row]), compare(a.row, b.row))
	})
	shared = shared[:min(len(shared), q.Size)]
	inShare, last := make(map[int16]int), make(map[int16]core.Place)
	edge := core.Place{Due: now, ID: uuid.Max}
	for _, m := range shared {
		inShare[m.lane]++
		if m.place().Compare(last[m.lane]) > 0 {
			last[m.lane] = m.place()
		}
		if m.busy == nil {
			picked = append(picked, m.row)
		}
	}
	slices.SortFunc(picked, compare)
	if len(picked) >= q.Size {
		edge = picked[len(picked)-1].place()
	}
	found.Ends = make(map[int16]core.Place)
	var again []*row
	for lane, all := range met {
		fresh := 0
		for _, m := range all {
			if m.is && m.fresh {
				fresh++
			} else if m.is && m.busy == nil && m.place().Compare(edge) <= 0 {
				again = append(again, m.row)
			}
		}
		end := all[len(all)-1]
		switch {
		case fresh > inShare[lane]:
			found.Ends[lane] = last[lane]
		case len(all) >= q.Size+q.Reclaims || end.ended:
			found.Ends[lane] = end.place()
		}
	}
	slices.SortFunc(again, compare)
	again = again[:min(len(again), q.Reclaims)]
	for _, r := range again {
		if r.attempts+1 >= r.max {
			return []*row{r}, found
		}
	}
	picked = append(picked, again...)
	slices.SortFunc(picked, compare)
	return picked[:min(len(picked), q.Size)], found
}

// laneOf returns the lane of an event.
func laneOf(topic string, tenant uuid.UUID, fair bool) int16 {
	return tenantlane.Of(topic, uuid.NullUUID{UUID: tenant, Valid: fair})
}
