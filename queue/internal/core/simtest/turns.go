package simtest

import (
	"maps"
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// The topic handled takes turns by tenant. The topic slow has these limits per tenant, too.
const (
	fairTopic, limitedTopic = "handled", "slow"

	maxRunning = 2
	maxStarts  = 20
	period     = time.Second
	startSlack = 200 * time.Millisecond
	// A claim takes up to mostAhead events of limited rate ahead of workers. The share of this rate would be none.
	mostAhead = 5
)

// file gives a row its lane and its turn.
func (r *Row) file() {
	r.Lane = topiclane.Of(r.Topic)
	if r.Topic == fairTopic || r.Topic == limitedTopic {
		r.Lane, r.Turn = topiclane.OfTurns(r.Topic), "tenant/"+r.Tenant.String()
	}
}

func (r *Row) turnOf() core.Turn { return core.Turn{Lane: r.Lane, Key: r.Turn} }

// visit is a visit of a claim to a turn.
type visit struct {
	core.TurnStart
	depth int
	rows  []*Row // what it may take, in order
	room  int    // how many that are not leased it may take, of a topic with limits
	state core.TurnState
	end   core.Place
}

// claimTurns does what claim_turns does.
func (t *Table) claimTurns(now time.Time, q *Query) (picked []*Row, found core.Found) {
	found = core.Found{At: now, Took: time.Millisecond, Ends: make(map[int32]core.Place)}
	visits, seen := t.visits(now, q.Turns, &found)
	for _, turn := range seen {
		found.Turns = append(found.Turns, core.TurnEnd{TurnStart: core.TurnStart{Turn: turn}, State: core.TurnSeen})
	}
	idle := q.Turns.Idle + min(q.Turns.Ahead, mostAhead)
	for _, v := range visits {
		v.depth = 8
		if len(q.Turns.Known) > 0 {
			v.depth = 1 + 2*q.Size/len(q.Turns.Known)
		}
		t.meetTurn(now, q, v)
		t.limit(now, v, &idle)
	}
	picked = t.pickInTurns(visits, q)
	for _, v := range visits {
		if v.full(picked) {
			v.state, v.end = core.TurnFull, core.Place{}
		}
		if v.state != 0 {
			found.Turns = append(found.Turns, core.TurnEnd{TurnStart: core.TurnStart{Turn: v.Turn, After: v.end}, State: v.state})
		}
	}
	for _, r := range picked {
		if r.Topic == limitedTopic {
			t.starts[r.turnOf()] = append(t.starts[r.turnOf()], now.Add(startSlack))
		}
	}
	return picked, found
}

// visits returns the turns that a claim visits, and those that it only sees.
func (t *Table) visits(now time.Time, q *core.TurnClaim, found *core.Found) (all []*visit, seen []core.Turn) {
	known := make(map[core.Turn]bool)
	for _, s := range q.Known {
		known[s.Turn] = true
		all = append(all, &visit{TurnStart: s})
	}
	var fresh []core.Turn
	add := func(turn core.Turn) {
		if !known[turn] {
			known[turn] = true
			fresh = append(fresh, turn)
		}
	}
	for _, s := range q.Front {
		n := 0
		for _, r := range t.rows {
			if !t.passes(r, now, s) {
				continue
			}
			if n++; !r.leased() {
				add(r.turnOf())
			}
			if n == q.Piece {
				found.Ends[s.Lane] = r.place()
				break
			}
		}
	}
	found.Hops = make(map[int32]string)
	for _, h := range q.Hops {
		heads := make(map[string]*Row)
		for _, r := range t.rows {
			if r.Lane == h.Lane && r.Turn > h.Key && heads[r.Turn] == nil {
				heads[r.Turn] = r
			}
		}
		keys := slices.Sorted(maps.Keys(heads))
		if len(keys) >= q.Count {
			keys = keys[:q.Count]
			found.Hops[h.Lane] = keys[len(keys)-1]
		}
		for _, key := range keys {
			if !heads[key].Due.After(now) {
				add(core.Turn{Lane: h.Lane, Key: key})
			}
		}
	}
	n := min(len(fresh), core.FreshTurns)
	for _, turn := range fresh[:n] {
		all = append(all, &visit{TurnStart: core.TurnStart{Turn: turn}})
	}
	return all, fresh[n:]
}

// meetTurn goes through a turn. Of one with limits it also finds the leases that have run out behind where it stops.
func (t *Table) meetTurn(now time.Time, q *Query, v *visit) {
	t.meetFirst(now, q, v)
	for _, r := range t.rows {
		late := r.turnOf() == v.Turn && r.Topic == limitedTopic && !r.Due.After(now) && t.ranOut(r, now, q) && t.allowed(r, q)
		if late && !slices.Contains(v.rows, r) && !t.lacks("limit-late") {
			v.rows = append(v.rows, r)
		}
	}
	slices.SortFunc(v.rows, compare)
}

// meetFirst goes through a turn until it has met enough.
func (t *Table) meetFirst(now time.Time, q *Query, v *visit) {
	n := 0
	for _, r := range t.rows {
		if r.turnOf() != v.Turn || !t.passes(r, now, core.Start{Lane: v.Lane, After: v.After}) {
			continue
		}
		if n++; (!r.leased() || t.ranOut(r, now, q)) && t.allowed(r, q) {
			v.rows = append(v.rows, r)
		}
		if len(v.rows) == v.depth {
			v.state = core.TurnMore
			return
		}
		if n == core.TurnPiece {
			v.state, v.end = core.TurnMore, r.place()
			return
		}
	}
}

// limit leaves those of v that its limits allow.
func (t *Table) limit(now time.Time, v *visit, idle *int) {
	if len(v.rows) == 0 || v.rows[0].Topic != limitedTopic {
		return
	}
	running := 0
	for _, r := range t.rows {
		if r.turnOf() == v.Turn && r.busy != nil && !t.lacks("limit-lock") {
			v.rows, v.state, v.end = nil, core.TurnBusy, core.Place{}
			return
		}
		if r.turnOf() == v.Turn && r.leased() {
			running++
		}
	}
	starts := slices.DeleteFunc(t.starts[v.Turn], func(at time.Time) bool { return at.Before(now.Add(-period)) })
	if t.starts[v.Turn] = starts; t.lacks("limit-rate") {
		starts = nil
	}
	room, allowed := t.allowedToRun()-running, maxStarts-len(starts)
	some := v.rows[:0:0]
	for _, r := range v.rows {
		switch {
		case allowed == 0 || !r.leased() && room <= 0:
			continue
		case !r.leased():
			room--
		}
		allowed--
		some = append(some, r)
	}
	switch {
	case len(some) == 0 && len(starts) >= maxStarts:
		v.rows, v.state, v.end = nil, core.TurnFull, core.Place{Due: starts[0].Add(period + 1)}
	case len(some) == 0:
		v.rows, v.state, v.end = nil, core.TurnFull, core.Place{}
	case *idle == 0:
		v.rows, v.state, v.end = nil, core.TurnIdle, core.Place{}
	default:
		if len(some) < len(v.rows) {
			v.state = core.TurnMore
		}
		v.rows = some[:min(len(some), *idle)]
		*idle -= len(v.rows)
		v.room = t.allowedToRun() - running
	}
}

// full reports whether the limit of v is reached with what was picked.
func (v *visit) full(picked []*Row) bool {
	if len(v.rows) == 0 || v.rows[0].Topic != limitedTopic || v.state == core.TurnIdle || v.state == core.TurnBusy {
		return false
	}
	room := v.room
	for _, r := range picked {
		if r.turnOf() == v.Turn && !r.leased() {
			room--
		}
	}
	return room <= 0
}

// pickInTurns takes from each visit as many as from the others.
func (t *Table) pickInTurns(visits []*visit, q *Query) (picked []*Row) {
	lates := 0
	for n := 0; ; n++ {
		some := false
		for _, v := range visits {
			if n >= len(v.rows) {
				continue
			}
			some = true
			r := v.rows[n]
			if !t.unlocked(r) || len(picked) == q.Size {
				continue
			}
			if r.leased() {
				if lates == q.Reclaims {
					continue
				}
				if lates++; r.Attempts+1 >= r.Max && !t.lacks("claim-alone") { // it comes alone
					return []*Row{r}
				}
			}
			picked = append(picked, r)
		}
		if !some {
			return picked
		}
	}
}

// allowedToRun returns how many events of a turn with limits may be leased.
func (t *Table) allowedToRun() int {
	if t.lacks("limit") {
		return 1 << 20
	}
	return t.running
}
