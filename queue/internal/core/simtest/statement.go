package simtest

import (
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/simulation"
)

// statement is one that a process sends, with what goes wrong with it.
type statement struct {
	p      *proc
	what   string
	faulty bool
	fault  simulation.Fault
	epoch  int           // of the server, when it was sent
	wait   time.Duration // for a connection
	unsent bool          // it got none
	fail   func()        // tells the core that it has failed, unless the core knows what has become of it
}

// latest is how late a statement arrives at most.
const latest = 2 * lease

// noConnection is how long a statement waits for a connection.
const noConnection = 5 * time.Second

// send sends a statement.
func (p *proc) send(what string) *statement {
	s := p.sim
	st := &statement{p: p, what: what, epoch: s.epoch}
	if st.fault, st.faulty = s.faults.First(simulation.Cut, simulation.Unanswered, simulation.Late); st.faulty {
		s.note(p.name, "FAULT: this "+what+" is "+st.fault.Kind.String())
		p.mark(s.now)
	}
	if left := p.exhausted.Sub(s.now); left > 0 {
		st.wait, st.unsent = min(left, noConnection), left > noConnection
		p.mark(p.exhausted)
	}
	p.sent = append(p.sent, st)
	return st
}

// answered says that the core knows what has become of st.
func (p *proc) answered(st *statement) {
	p.sent = slices.DeleteFunc(p.sent, func(o *statement) bool { return o == st })
}

// cut ends all that p has sent, as the end of a context does.
func (p *proc) cut() {
	for _, st := range slices.Clone(p.sent) {
		if st.fail != nil {
			st.fail()
		}
	}
}

func (st *statement) is(k simulation.Kind) bool { return st.faulty && st.fault.Kind == k }

// lag is how much later it arrives than its sender thinks.
func (st *statement) lag() time.Duration {
	if st.is(simulation.Late) {
		return st.fault.UpTo(latest)
	}
	return 0
}

// arrives reports whether it reaches the server now.
func (st *statement) arrives() bool {
	s := st.p.sim
	switch {
	case st.unsent, st.p.databaseOver, s.now.Before(s.database), st.epoch != s.epoch:
		return false
	case st.is(simulation.Cut):
		return st.fault.Pick1(2) == 0
	}
	return !st.p.crashed || st.p.rnd.IntN(2) == 0
}

// commits reports whether it takes effect now, after it has arrived.
func (st *statement) commits() bool {
	s := st.p.sim
	if st.is(simulation.Late) {
		st.p.mark(s.now)
		s.note(st.p.name, "FAULT: the late "+st.what+" takes effect")
	}
	return !st.is(simulation.Cut) && !s.now.Before(s.database) && st.epoch == s.epoch
}

// answers reports whether its sender learns what it did.
func (st *statement) answers() bool {
	return !st.is(simulation.Unanswered) && !st.is(simulation.Late) && st.epoch == st.p.sim.epoch
}

// mark says that a fault that lasts until at may explain what becomes of the leases of p.
func (p *proc) mark(at time.Time) {
	if p.faultAt.Before(at) {
		p.faultAt = at
	}
}

// mark says that a fault that lasts until at may explain what becomes of all leases.
func (s *sim) mark(at time.Time) {
	if s.faultAt.Before(at) {
		s.faultAt = at
	}
}
