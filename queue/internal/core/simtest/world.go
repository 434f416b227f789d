package simtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/internal/testing/simulation"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// history is what a simulation knows of an event.
type history struct {
	n          int     // of its enqueue
	to         string  // the destination of a topic whose events say it
	holder     *proc   // of its latest lease
	begun      []*held // by handlers and publishers
	claimedAt  time.Time
	changed    time.Time // when it became visible, or a claim let it go
	committed  bool
	rolledBack bool
	lost       bool // its transaction was committed, and a restart of the server has undone it
	poison     bool // it kills whoever handles it

	seen        int  // how often it was started, without what was released
	handled     int  // how often a handler or a publisher has returned success
	effects     int  // behind an inbox
	unexplained int  // attempts that no failure and no lost lease has used up
	excused     bool // a fault explains that it is handled again
	abandoned   bool // leased for hours by a process that has ended
}

func (r *Row) name() string { return fmt.Sprint(r.n) }

// requireExcuse checks that a fault explains why the lease of r ran out.
func (s *sim) requireExcuse(r *Row) {
	p := r.holder
	gone := p.crashed || p.ended || p.stopping
	s.require(gone || !p.faultAt.Before(r.claimedAt) || !s.faultAt.Before(r.claimedAt), "I9",
		"the lease of event %s ran out, and nothing explains it", r.name())
	r.excused = true
}

var tenants = []uuid.UUID{{1}, {2}, {3}}

// enqueueSome enqueues for a moment. The transactions of a moment wait for the disk, or none does.
func (s *sim) enqueueSome() {
	syncs := time.Duration(0)
	if f, is := s.faults.Draw(simulation.Unsynced); is {
		syncs = 1 + f.UpTo(walDelay)
	}
	if s.load.IntN(2) == 0 {
		for range 1 + s.load.IntN(1+s.load.IntN(25)) {
			s.enqueue(syncs)
		}
	}
}

// enqueue enqueues an event. Its transaction may be committed much later, or never. It waits for the disk if syncs is 0, and
// otherwise it is there so long after its commit.
func (s *sim) enqueue(syncs time.Duration) {
	n := s.result.Events
	s.result.Events++
	r := &Row{
		Topic: s.topics[s.load.IntN(len(s.topics))], Tenant: tenants[s.load.IntN(3)], Max: 1 + s.load.IntN(4), Due: s.db(), Version: 1,
		history: history{n: n, to: []string{"a", "b", "c"}[s.load.IntN(3)]},
	}
	r.ID = uuid.UUID{byte(n >> 16), byte(n >> 8), byte(n), 15: 1}
	r.file()
	if later := s.load.IntN(5) == 0; s.bells {
		r.Max = 100
	} else if later && !s.calm {
		r.Due = r.Due.Add(upTo(s.load, 10*time.Second))
	}
	if !s.sched.Has(n) && !s.calm {
		return
	}
	if _, is := s.faults.Draw(simulation.NewVersion); is {
		r.Version = 2
	}
	if _, is := s.faults.Draw(simulation.Poison); is && s.counts["poison"] < 2 {
		r.poison = true
		s.counts["poison"]++
	}
	rings := slices.ContainsFunc(s.procs, func(p *proc) bool {
		return p.watches || p.awaits && p.rnd.IntN(10) > 0 // it does not wait for a moment now and then
	})
	if !rings {
		s.open++
	}
	took := time.Duration(0)
	if f, is := s.faults.Draw(simulation.LateCommit); is {
		took = f.UpTo(4 * time.Second)
	}
	_, rollsBack := s.faults.Draw(simulation.Rollback)
	epoch := s.epoch
	if s.lacks("commit") {
		s.Add(r)
	}
	s.note("producer", fmt.Sprintf("enqueues event %d of %s, version %d, %d attempts, poison %v", n, r.Topic, r.Version, r.Max, r.poison))
	s.after(took, func() {
		if !rings {
			s.closed()
		}
		if r.rolledBack = rollsBack || epoch != s.epoch; r.rolledBack {
			s.note("producer", "FAULT: event "+r.name()+" is rolled back")
			return
		}
		if r.committed, r.changed = true, s.now; !s.lacks("commit") {
			s.Add(r)
		}
		if took > 0 {
			s.note("producer", "FAULT: event "+r.name()+" is committed only now")
		}
		if syncs > 0 {
			s.flushLater(r, syncs)
		} else {
			s.flush()
		}
		if rings && !s.lacks("ring") {
			s.ring(true)
		}
	})
}

// closed records the end of a transaction that has enqueued without a ring. After the last one, a process that waits for the
// doorbell has it.
func (s *sim) closed() {
	if s.open--; s.open > 0 {
		return
	}
	for _, p := range s.procs {
		s.after(p.upTo(5*time.Millisecond), func() {
			if p.awaits && s.open == 0 && !slices.ContainsFunc(s.procs, func(o *proc) bool { return o.watches }) {
				p.watches, p.awaits = true, false
				s.ring(false)
			}
		})
	}
}

// ring wakes everybody who listens. Either an enqueue rings, or a process that stops watching.
func (s *sim) ring(enqueued bool) {
	for _, p := range s.procs {
		if _, lost := s.faults.Draw(simulation.LostRing); lost {
			s.note(p.name, "FAULT: a ring is lost")
			continue
		}
		times := 1
		if _, doubled := s.faults.Draw(simulation.DoubledRing); doubled {
			times = 2
		}
		woken := core.Woken{Watched: p.watches || enqueued, Left: enqueued && !p.watches && !p.awaits}
		for range times {
			s.after(p.upTo(10*time.Millisecond), func() { p.tell(woken) })
		}
	}
}

// happen makes what goes wrong in a moment.
func (s *sim) happen() {
	for _, k := range []struct {
		simulation.Kind
		do func(simulation.Fault)
	}{
		{simulation.OperatorStop, s.pause},
		{simulation.Down, s.goDown},
		{simulation.Away, s.goAway},
		{simulation.Stop, s.replaceOne},
		{simulation.Kill, s.killOne},
		{simulation.Pause, s.freezeOne},
		{simulation.LostBell, s.loseBell},
		{simulation.Restart, s.restart},
		{simulation.ClockStep, s.step},
		{simulation.Exhausted, s.exhaust},
		{simulation.LimitChange, s.changeLimit},
		{simulation.Replay, s.replay},
	} {
		if f, is := s.faults.Draw(k.Kind); is {
			k.do(f)
		}
	}
	if s.world.IntN(12) == 0 {
		s.resume()
	}
	if s.world.IntN(30) == 0 && !s.bells {
		s.startProc(true)
	}
}

// one returns a process that f picks, of those that take work.
func (s *sim) one(f simulation.Fault) *proc {
	var alive []*proc
	for _, p := range s.procs {
		if !p.stopping && !p.cfg.Drain {
			alive = append(alive, p)
		}
	}
	if len(alive) == 0 {
		return nil
	}
	return alive[f.Pick1(len(alive))]
}

func (s *sim) goDown(f simulation.Fault) {
	s.database = s.now.Add(f.UpTo(3 * time.Second))
	s.mark(s.database)
	s.note("database", "FAULT: does not answer for "+f.UpTo(3*time.Second).String())
}

func (s *sim) goAway(f simulation.Fault) {
	name := []string{"handled", "slow", "sent", "routed", "a", "b", "batched"}[f.Pick1(7)]
	s.away[name] = s.now.Add(f.UpTo(5 * time.Second))
	s.note("target "+name, "FAULT: is away for "+f.UpTo(5*time.Second).String())
}

// replaceOne stops a process, unless it is the only one, and starts another later.
func (s *sim) replaceOne(f simulation.Fault) {
	if p := s.one(f); p != nil && len(s.procs) > 1 {
		s.note(p.name, "FAULT: is told to stop")
		s.stop(p)
		s.after(f.UpTo(2*time.Second), func() { s.startProc(false) })
	}
}

func (s *sim) killOne(f simulation.Fault) {
	if p := s.one(f); p != nil {
		s.crash(p)
	}
}

// freezeOne keeps a process from learning anything for a while.
func (s *sim) freezeOne(f simulation.Fault) {
	if p := s.one(f); p != nil && !p.frozen {
		p.frozen = true
		p.mark(s.now.Add(f.UpTo(2 * lease)))
		s.note(p.name, "FAULT: stands still for "+f.UpTo(2*lease).String())
		s.after(f.UpTo(2*lease), func() { s.thaw(p) })
	}
}

// loseBell takes the doorbell from a process.
func (s *sim) loseBell(f simulation.Fault) {
	if p := s.one(f); p != nil {
		s.note(p.name, "FAULT: loses its doorbell")
		p.watches, p.awaits = false, false
		p.tell(core.Answered{Bell: sleep.Gone})
		s.after(f.UpTo(time.Second), func() { s.ring(false) })
	}
}

// restart restarts the server after a crash: open transactions are rolled back, what is not on disk, answers and doorbells are
// lost.
func (s *sim) restart(f simulation.Fault) {
	s.epoch++
	s.database = s.now.Add(f.UpTo(time.Second))
	s.mark(s.database)
	s.note("database", "FAULT: restarts, "+f.UpTo(time.Second).String())
	s.loseUnflushed()
	for _, p := range slices.Clone(s.procs) {
		p.awaits = false
		if p.watches {
			p.watches = false
			p.tell(core.Answered{Bell: sleep.Gone})
		}
	}
	s.after(2*f.UpTo(time.Second), func() { s.ring(false) })
}

// step steps the clock of the database.
func (s *sim) step(f simulation.Fault) {
	d := f.UpTo(2 * lease)
	if f.Pick1(2) == 0 {
		d = -d
	}
	s.skew, s.stepped = s.skew+d, s.now
	s.mark(s.now)
	s.note("database", "FAULT: its clock jumps by "+d.String())
}

// steppedSince reports whether the clock of the database was stepped since h was claimed.
func (s *sim) steppedSince(h *held) bool { return !s.stepped.Before(h.since) }

// exhaust takes all connections from a process for a while.
func (s *sim) exhaust(f simulation.Fault) {
	if p := s.one(f); p != nil {
		p.exhausted = s.now.Add(f.UpTo(2 * lease))
		s.note(p.name, "FAULT: its pool is exhausted for "+f.UpTo(2*lease).String())
	}
}

func (s *sim) changeLimit(f simulation.Fault) {
	s.running = 1 + f.Pick1(2*maxRunning)
	s.mostRunning = max(s.mostRunning, s.running)
	s.note("operator", fmt.Sprint("FAULT: the limit becomes ", s.running))
}

// replay replays dead letters.
func (s *sim) replay(f simulation.Fault) {
	for _, r := range s.all {
		if r.Final == "dead" && !r.poison {
			r.seen, r.unexplained, r.begun, r.excused = 0, 0, nil, true
			s.Replay(r, s.db())
			s.note("operator", "FAULT: replays event "+r.name())
			s.flush()
		}
	}
	s.ring(false)
}

func (s *sim) pause(f simulation.Fault) {
	s.paused = s.now.Add(time.Second)
	keys := slices.Clone(s.pauses.Keys)
	switch f.Pick1(4) {
	case 0:
		s.note("operator", "FAULT: pauses everything")
		s.pauses = core.PausesOf(true, nil)
		return
	case 1:
		keys = append(keys, s.topics[f.Pick2(len(s.topics))])
	default:
		keys = append(keys, tenants[f.Pick2(3)].String())
	}
	s.note("operator", "FAULT: pauses "+keys[len(keys)-1])
	s.pauses = core.PausesOf(false, keys)
}

// resume ends a pause, and rings those that are listed.
func (s *sim) resume() {
	if !s.pauses.Any() {
		return
	}
	var keys []string
	if len(s.pauses.Keys) > 1 {
		keys = slices.Clone(s.pauses.Keys[1:])
	}
	s.note("operator", "ends a pause")
	s.paused = s.now.Add(time.Second)
	s.pauses = core.PausesOf(false, keys)
	for _, p := range s.procs {
		if p.listed {
			s.after(p.upTo(10*time.Millisecond), func() { p.tell(core.Woken{}) })
		}
	}
}

// calmDown ends everything that goes wrong.
func (s *sim) calmDown() {
	s.calm, s.faults.Calm, s.database = true, true, time.Time{}
	s.note("world", "nothing goes wrong any more")
	clear(s.away)
	for _, p := range slices.Clone(s.procs) {
		p.exhausted = time.Time{}
		s.thaw(p)
	}
	for s.pauses.Any() {
		s.resume()
	}
	s.running = maxRunning
	if !slices.ContainsFunc(s.procs, func(p *proc) bool { return !p.stopping && !p.cfg.Drain && p.version == 2 }) {
		s.startProc(false)
	}
}

// stop ends the context of p.
func (s *sim) stop(p *proc) {
	if p.stopping {
		return
	}
	s.thaw(p)
	p.stopping, p.listed = true, false
	p.tell(core.Stop{})
	if p.awaits = false; p.watches {
		p.watches = false
		s.ring(false)
	}
	s.after(shutdown, func() { p.cancelled = true })
	s.after(shutdown+time.Second, func() { p.tell(core.GiveUp{}) })
	s.after(shutdown+2*time.Second, func() {
		p.databaseOver = true
		p.tell(core.DatabaseOver{})
		p.cut()
	})
	s.after(shutdown+2500*time.Millisecond, func() {
		s.require(p.ended || p.crashed || p.frozen, "I11", "%s does not stop", p.name)
	})
}

// crash ends p without a word.
func (s *sim) crash(p *proc) {
	s.note(p.name, "FAULT: is killed")
	p.crashed = true
	s.remove(p)
	s.after(p.upTo(2*time.Second), func() { s.startProc(false) })
}

func (s *sim) remove(p *proc) {
	if p.awaits = false; p.watches {
		p.watches = false
		s.after(0, func() { s.ring(false) }) // a connection that is lost tells the others by the next one that connects
	}
	s.procs = slices.DeleteFunc(s.procs, func(o *proc) bool { return o == p })
}

// thaw lets p go on. Workers take what waits for them before the core learns the time.
func (s *sim) thaw(p *proc) {
	if !p.frozen {
		return
	}
	p.frozen = false
	s.note(p.name, "goes on")
	p.mark(s.now)
	held, returns := p.held, p.returns
	p.held, p.returns = nil, nil
	for _, returned := range returns {
		returned()
	}
	for _, e := range held {
		p.tell(e)
	}
}

// requireLimits checks the limits of what was leased now.
func (s *sim) requireLimits(picked []*Row) {
	fresh, leased := make(map[core.Turn]int), make(map[core.Turn]int)
	for _, r := range picked {
		if r.Topic == limitedTopic {
			fresh[r.turnOf()]++
		}
	}
	if len(fresh) == 0 {
		return
	}
	for _, r := range s.rows {
		if r.Topic == limitedTopic && r.leased() {
			leased[r.turnOf()]++
		}
	}
	for turn := range fresh {
		s.require(leased[turn] <= max(s.running, s.mostRunning), "limit", "%d events of turn %s are leased, and %d may be", leased[turn],
			turn.Key, s.running)
	}
}

// requireRate checks how many events of the turn of r have begun in a period. Its clock is that of the database.
func (p *proc) requireRate(r *Row) {
	s := p.sim
	if r.Topic != limitedTopic {
		return
	}
	began := slices.DeleteFunc(s.began[r.turnOf()], func(at time.Time) bool { return s.now.Sub(at) >= period })
	began = append(began, s.now)
	s.began[r.turnOf()] = began
	s.require(len(began) <= maxStarts || !s.stepped.IsZero(), "limit", "%d events of turn %s begin within %s, and %d may", len(began),
		r.Turn, period, maxStarts)
}
