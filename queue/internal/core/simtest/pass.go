package simtest

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/testing/simulation"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// errDatabase is the error of a database that does not answer.
var errDatabase = fmt.Errorf("the database does not answer")

// pass makes a round trip: its statements lock rows, its commit changes them, and its answer comes later.
func (p *proc) pass(c *core.Pass) {
	s := p.sim
	p.passes++
	s.require(p.passes <= core.MaxPasses, "core", "%s has %d passes", p.name, p.passes)
	for _, t := range c.Settle {
		h := of(t)
		s.require(!h.settled && !h.settling, "core", "%s settles an event twice", p.name)
		s.require(h.over || !h.began, "core", "%s settles an event that runs", p.name)
		h.settling, h.over = true, true
		s.require(t.As != core.Ack || h.done, "I1", "%s acks event %s, which nobody has handled", p.name, h.name())
		s.require(t.As != core.Nack || h.began, "I6", "%s charges event %s, which was not started", p.name, h.name())
		s.require(t.As != core.Release || !h.done, "I9", "%s releases event %s, which was delivered", p.name, h.name())
	}
	if c.Claim != nil {
		s.require(!p.stopping, "core", "%s claims after its end", p.name)
	}
	st, sent := p.send("pass"), s.now
	told := false
	answer := func(known map[*core.Task]bool, claimed []*core.Task, found core.Found, committed bool) {
		if !told {
			told = true
			p.answered(st)
			p.passDone(c, known, claimed, found, committed)
		}
	}
	fail := func() { answer(nil, nil, core.Found{}, false) }
	if st.fail = fail; st.is(simulation.Late) {
		s.after(p.upTo(time.Second), fail)
	}
	s.after(st.wait+st.lag()+p.upTo(20*time.Millisecond), func() {
		if !st.arrives() {
			fail()
			return
		}
		x := &exchange{p: p, st: st, c: c, sent: sent, answer: answer, fail: fail}
		x.lock()
		if c.Claim != nil {
			x.picked, x.found = s.Claim(s.db(), &Query{Claim: c.Claim, Version: p.version})
		}
		for _, r := range x.picked {
			s.require(r.busy == nil || s.lacks("claim-lock"), "core", "two claims lock one row")
			r.busy = p
		}
		x.at = s.db()
		s.after(p.upTo(20*time.Millisecond), x.commit)
	})
}

// exchange is a pass whose statements have run.
type exchange struct {
	p      *proc
	st     *statement
	c      *core.Pass
	sent   time.Time
	at     time.Time // of its claim, by the clock of the database
	picked []*Row
	locked []*Row // to be settled
	found  core.Found
	answer func(known map[*core.Task]bool, claimed []*core.Task, found core.Found, committed bool)
	fail   func()
}

// lock locks what the pass settles. Its own claim passes that over.
func (x *exchange) lock() {
	for _, t := range x.c.Settle {
		h := of(t)
		if h.busy == nil && h.ClaimNo == h.claimNo && h.LockedBy == x.p.id && h.leased() {
			h.busy = x.p
			x.locked = append(x.locked, h.Row)
		}
	}
}

func (x *exchange) commit() {
	p, s := x.p, x.p.sim
	for _, r := range x.locked {
		r.busy = nil
	}
	for _, r := range x.picked {
		r.busy, r.changed = nil, s.now
	}
	if !x.st.commits() { // rolled back
		x.fail()
		return
	}
	known := make(map[*core.Task]bool)
	for _, t := range x.c.Settle {
		if !s.lacks("settlements") {
			p.settle(t)
		}
		known[t] = true
	}
	claimed := x.claimed()
	if len(claimed)+len(x.c.Settle) > 0 && !s.lacks("claim-flush") {
		s.flush()
	}
	s.requireLimits(x.picked)
	s.sort()
	if !x.st.answers() {
		p.doubtful = true
		x.fail()
		return
	}
	x.answer(known, claimed, x.found, true)
}

// claimed leases what was picked, and returns the tasks of it.
func (x *exchange) claimed() (claimed []*core.Task) {
	p, s := x.p, x.p.sim
	for _, r := range x.picked {
		again := r.leased()
		if again { // a lease ran out: that attempt is used up
			r.unexplained--
			s.requireExcuse(r)
		}
		if !again && r.handled > 0 {
			s.require(r.excused, "I9", "event %s, which was handled, is claimed again", r.name())
		}
		s.require(r.Attempts < r.Max, "I6", "event %s is claimed for attempt %d of %d", r.name(), r.Attempts+1, r.Max)
		s.require(!r.leased() || r.LockedUntil.Before(x.at), "I4", "event %s is claimed while its lease holds", r.name())
		s.require(!r.Due.After(x.at), "core", "event %s is claimed before it is due", r.name())
		s.require(r.Version <= p.version, "core", "event %s has version %d, which %s does not know", r.name(), r.Version, p.name)
		tenant := uuid.NullUUID{UUID: r.Tenant, Valid: true}
		s.require(!x.c.Claim.Paused.Event(r.Topic, tenant), "core", "event %s is claimed while it is paused", r.name())
		had := p.inFlight[r]
		late := x.st.is(simulation.Late) // when it was sent, the lease was not at risk
		s.require(!again || had == nil || late || s.steppedSince(of(had)), "I4", "%s claims event %s, which it has in flight", p.name, r.name())
		r.unexplained++
		s.Lease(r, p.id, x.at, p.cfg.LeaseDuration)
		r.holder, r.claimedAt = p, x.sent
		s.note(p.name, fmt.Sprintf("leases event %s, attempt %d of %d, claim %d", r.name(), r.Attempts, r.Max, r.ClaimNo))
		x.found.Rows = append(x.found.Rows, core.Seen{
			Lane: r.Lane, Turn: r.Turn, At: r.place(), Reclaimed: again, Last: r.Attempts >= r.Max,
		})
		h := &held{Row: r, p: p, claimNo: r.ClaimNo, since: x.sent}
		var within time.Time
		if r.Topic == limitedTopic {
			within = x.sent.Add(startSlack)
		}
		from := x.sent
		if s.lacks("deadline") {
			from = s.now.Add(5 * time.Second)
		}
		claimed = append(claimed, &core.Task{
			Lane: r.Lane, Turn: r.Turn, StartWithin: within, ID: r.ID, Topic: r.Topic, Tenant: tenant,
			Attempt: r.Attempts, MaxAttempts: r.Max, Reclaimed: again, ClaimDeadline: from.Add(p.cfg.LeaseDuration), Data: h,
		})
	}
	return claimed
}

// settle changes the row of t, if its fence holds.
func (p *proc) settle(t *core.Task) {
	s, h := p.sim, of(t)
	r, f := h.Row, Fence{p.id, h.claimNo}
	valid := r.ClaimNo == h.claimNo && r.LockedBy == p.id && r.leased()
	if r.busy != nil { // it would wait for the claim of another pass, and find its fence lost
		s.require(r.LockedUntil.Before(s.db()) || !valid, "core", "a claim has event %s locked, whose lease holds", r.name())
		return
	}
	changed, attempts := false, r.Attempts
	switch t.As {
	case core.Ack:
		changed = s.Ack(r, f)
	case core.Nack:
		if changed = s.Nack(r, f, s.db(), t.Result.Class == errclass.ClassRefused, s.db().Add(p.upTo(3*time.Second))); changed {
			r.unexplained--
		}
	case core.Release:
		if p.stopping && s.lacks("release-at-end") {
			return
		}
		if changed = s.Release(r, f, s.db(), t.After); changed {
			if r.unexplained--; h.began {
				r.seen--
			}
		}
	}
	if !changed {
		return
	}
	s.note(p.name, fmt.Sprintf("settles event %s: %s", r.name(), []string{"ack", "nack", "release"}[t.As]))
	s.require(valid, "I5", "a claim of event %s that is over settles it", r.name())
	s.require(t.As != core.Release || r.Attempts < attempts, "I6", "event %s is released, and its attempt stays counted", r.name())
	s.require(r.unexplained == 0 || r.Final == "delivered", "I6", "event %s has %d attempts that nothing explains", r.name(), r.unexplained)
	s.require(r.Attempts >= r.seen, "I6", "event %s has %d attempts, and was started %d times", r.name(), r.Attempts, r.seen)
	must := t.As == core.Nack && (r.Attempts >= r.Max || t.Result.Class == errclass.ClassRefused)
	s.require(!must || r.Final == "dead", "I6", "event %s has failed for the last time, and is not dead", r.name())
}

// passDone gives the core the answer of a pass, in its turn.
func (p *proc) passDone(
	c *core.Pass, known map[*core.Task]bool, claimed []*core.Task, found core.Found, committed bool,
) {
	s := p.sim
	s.after(p.upTo(20*time.Millisecond), func() {
		p.passes--
		e := &core.PassDone{Pass: c, Claimed: claimed, Found: found}
		for _, t := range c.Settle {
			of(t).settling = false
			if of(t).settled = known[t]; !known[t] {
				e.Open = append(e.Open, t)
			} else {
				p.landed(t)
			}
		}
		for _, t := range claimed {
			s.claims++
			of(t).order = s.claims
			p.inFlight[of(t).Row] = t
		}
		if !committed || len(e.Open) > 0 {
			e.Err = errDatabase
		}
		p.tell(e)
	})
}
