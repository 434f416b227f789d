package coresim

import (
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// errDatabase is the error of a database that does not answer.
var errDatabase = broken("the database does not answer")

func (b broken) Error() string { return string(b) }

// pass makes a round trip: its statements lock rows, its commit changes them, and its answer comes later. All of them
// may fail.
func (p *proc) pass(c *core.Pass) {
	s := p.sim
	p.passes++
	s.require(p.passes <= core.MaxPasses, "%s has %d passes", p.name, p.passes)
	for _, t := range c.Settle {
		h := of(t)
		s.require(!h.settled && !h.settling, "%s settles an event twice", p.name)
		s.require(h.over || !h.began, "%s settles an event that runs", p.name)
		h.settling, h.over = true, true
		s.require(t.As != core.Ack || h.done, "%s acks what nobody has handled", p.name)
		s.require(t.As != core.Nack || h.began, "%s charges an event that was not started", p.name)
		s.require(t.As != core.Release || !h.done, "%s releases what was delivered", p.name)
	}
	if c.Claim != nil {
		s.require(!p.stopping, "%s claims after its end", p.name)
	}
	s.after(s.upTo(20*time.Millisecond), func() {
		if p.crashed || p.databaseOver || s.now.Before(s.database) || s.chance(40) {
			p.passDone(c, nil, nil, core.Found{}, false)
			return
		}
		var picked []*row
		var found core.Found
		if c.Claim != nil {
			picked, found = s.claim(s.now, c.Claim)
		}
		for _, r := range picked {
			s.require(r.busy == nil, "two claims lock one row")
			r.busy = p
		}
		until := s.now.Add(p.cfg.LeaseDuration)
		s.after(s.upTo(20*time.Millisecond), func() { p.commit(c, picked, found, until) })
	})
}

func (p *proc) commit(c *core.Pass, picked []*row, found core.Found, until time.Time) {
	s := p.sim
	for _, r := range picked {
		r.busy, r.changed = nil, s.now
	}
	if s.chance(40) || s.now.Before(s.database) { // rolled back
		p.passDone(c, nil, nil, core.Found{}, false)
		return
	}
	known := make(map[*core.Task]bool)
	for _, t := range c.Settle {
		p.settle(t)
		known[t] = !s.chance(500)
	}
	var claimed []*core.Task
	for _, r := range picked {
		if r.leased() { // a lease ran out: that attempt is used up
			r.unexplained--
		}
		r.attempts++
		r.unexplained++
		r.claimNo++
		again := r.leased()
		r.lockedBy, r.lockedUntil = p, until
		found.Rows = append(found.Rows, core.Seen{
			Lane: r.lane, Turn: r.turn, At: r.place(), Reclaimed: again, Last: r.attempts >= r.max,
		})
		h := &held{row: r, claimNo: r.claimNo}
		var within time.Time
		if r.topic == limitedTopic {
			within = found.At.Add(startSlack)
		}
		claimed = append(claimed, &core.Task{
			Lane: r.lane, Turn: r.turn, StartWithin: within, ID: r.id, Topic: r.topic, Tenant: uuid.NullUUID{UUID: r.tenant, Valid: true},
			Attempt: r.attempts, MaxAttempts: r.max, Reclaimed: again, ClaimDeadline: until.Add(-40 * time.Millisecond), Data: h,
		})
	}
	s.requireLimits()
	s.sort()
	if s.chance(60) && (!s.bells || len(picked) == 0) { // the answer is lost
		p.doubtful = true
		p.passDone(c, nil, nil, core.Found{}, false)
		return
	}
	p.passDone(c, known, claimed, found, true)
}

// settle changes the row of t, if its fence holds.
func (p *proc) settle(t *core.Task) {
	s, h := p.sim, of(t)
	r := h.row
	if r.claimNo != h.claimNo || r.lockedBy != p || r.final != "" || !r.leased() {
		return // lost, or already settled so
	}
	r.lockedUntil = time.Time{}
	switch t.As {
	case core.Ack:
		r.final = "delivered"
	case core.Nack:
		r.unexplained--
		if r.attempts >= r.max || t.Result.Class == errclass.ClassRefused {
			r.final = "dead"
		}
		r.due = s.now.Add(s.upTo(3 * time.Second))
	case core.Release:
		r.attempts--
		r.unexplained--
		if t.After > 0 {
			r.due = s.now.Add(t.After)
		}
	}
	explained := r.unexplained == 0 || r.final == "delivered"
	s.require(explained, "event %s has %d attempts too many", short(r.id), r.unexplained)
}

// passDone gives the core the answer of a pass, in its turn.
func (p *proc) passDone(
	c *core.Pass, known map[*core.Task]bool, claimed []*core.Task, found core.Found, committed bool,
) {
	s := p.sim
	s.after(s.upTo(20*time.Millisecond), func() {
		p.passes--
		e := &core.PassDone{Pass: c, Claimed: claimed, Found: found}
		for _, t := range c.Settle {
			of(t).settling = false
			if of(t).settled = known[t]; !known[t] {
				e.Open = append(e.Open, t)
			}
		}
		for _, t := range claimed {
			s.claims++
			of(t).order = s.claims
		}
		if !committed || len(e.Open) > 0 {
			e.Err = errDatabase
		}
		p.tell(e)
	})
}
