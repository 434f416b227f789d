// Package simtest plays random schedules of dispatchers: several cores against a model of the tables, in virtual time,
// with faults. See docs/inside/testing.md.
package simtest

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/testing/simulation"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// Machine is the dispatcher.
func Machine() *simulation.Machine {
	return &simulation.Machine{Name: "dispatcher", Rates: rates, Controls: controls, Play: play}
}

// rates says how rare the faults are.
var rates = simulation.Rates{
	// of statements
	simulation.Cut: 60, simulation.Unanswered: 60, simulation.Late: 100, simulation.Locked: 10,
	// of a moment
	simulation.OperatorStop: 12, simulation.Down: 20, simulation.Away: 16, simulation.Stop: 25, simulation.Kill: 30,
	simulation.Pause: 30, simulation.LostBell: 30, simulation.Restart: 50, simulation.ClockStep: 50, simulation.Exhausted: 30,
	simulation.LimitChange: 20, simulation.Replay: 20,
	// of an event
	simulation.NewVersion: 10, simulation.Rollback: 15, simulation.LateCommit: 4, simulation.Poison: 60,
	simulation.Unsynced: 2,
	// of a ring, a call and a message
	simulation.LostRing: 20, simulation.DoubledRing: 20, simulation.Failure: 12, simulation.Slow: 60, simulation.DoubledSend: 20,
}

// needPolls are the faults that a poll repairs, or the end of a lease. They do not happen where nothing but rings wakes.
var needPolls = []simulation.Kind{
	simulation.Unanswered, simulation.Late, simulation.Away, simulation.Kill, simulation.Pause, simulation.Restart,
	simulation.ClockStep, simulation.LimitChange, simulation.Replay, simulation.Poison, simulation.LostRing, simulation.Failure,
	simulation.Slow,
}

const (
	lease    = 10 * time.Second
	shutdown = 5 * time.Second
	busy     = 10 * time.Second
	// finished is within what time all is final when nothing goes wrong any more, without the kills of poison.
	finished = 90 * time.Second
	// begins is within what time an event begins that is enqueued when nothing is to be done: a poll, and what a claim takes.
	begins = 5 * time.Second
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// play plays a schedule.
func play(sched *simulation.Schedule, trace simulation.Trace) (result *simulation.Result) {
	s := &sim{
		Table: NewTable(), sched: sched, faults: simulation.NewFaults(sched, rates), now: start, trace: trace,
		load: rand.New(rand.NewPCG(sched.Seed, 1)), world: rand.New(rand.NewPCG(sched.Seed, 2)),
		away: make(map[string]time.Time), inbox: make(map[uuid.UUID]bool), counts: make(map[string]int), mostRunning: maxRunning, began: make(map[core.Turn][]time.Time),
	}
	result = &simulation.Result{Counts: s.counts}
	s.without, s.result = sched.Without, result
	defer func() { s.result.Faults = s.faults.Happened }()
	defer simulation.Catch(result, func() time.Duration { return s.now.Sub(start) })
	s.play()
	return result
}

// require fails the schedule if an invariant does not hold.
func (s *sim) require(is bool, invariant, format string, args ...any) {
	if !is {
		panic(simulation.Violated(invariant, format, args...))
	}
}

// sim is one schedule.
type sim struct {
	*Table
	sched  *simulation.Schedule
	faults *simulation.Faults
	result *simulation.Result
	counts map[string]int
	trace  simulation.Trace
	// load draws what is enqueued, and world what happens else. Each process has a source of its own.
	load, world *rand.Rand

	now     time.Time
	queue   moments
	seq     int
	procs   []*proc
	started int
	calm    bool // nothing goes wrong any more
	over    bool // all are told to stop
	bells   bool // only rings wake: nothing goes wrong that a poll would repair
	topics  []string
	inbox   map[uuid.UUID]bool
	claims  int

	away     map[string]time.Time // until when a target is away
	database time.Time            // until when the database does not answer
	epoch    int                  // of the server
	skew     time.Duration        // of the clock of the database
	stepped  time.Time            // when it was stepped last
	faultAt  time.Time            // until when a fault of all may explain what becomes of leases
	paused   time.Time            // when something was paused last
	open     int                  // transactions that have enqueued without a ring and are not committed

	unflushed []*Row // that are committed, and not on disk yet
	lost      []*Row // that a restart of the server has undone

	mostRunning int                       // the highest limit so far
	began       map[core.Turn][]time.Time // events of a turn with limits, in the latest period
}

// db is the time by the clock of the database.
func (s *sim) db() time.Time { return s.now.Add(s.skew) }

func (s *sim) note(who, what string) {
	if s.trace != nil {
		s.trace(s.now.Sub(start), who, what)
	}
}

// moments are what is to come, a heap by time.
type moments []moment

type moment struct {
	at  time.Time
	seq int
	do  func()
}

func (q moments) Len() int { return len(q) }
func (q moments) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].seq < q[j].seq
}
func (q moments) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *moments) Push(x any)   { *q = append(*q, x.(moment)) }
func (q *moments) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

func (s *sim) after(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.queue, moment{s.now.Add(d), s.seq, do})
}

// until plays what is to come before at.
func (s *sim) until(at time.Time) {
	for len(s.queue) > 0 && !s.queue[0].at.After(at) {
		m := heap.Pop(&s.queue).(moment)
		s.now = m.at
		m.do()
	}
	s.now = at
}

// upTo returns a random duration, which is nearly always short.
func upTo(rnd *rand.Rand, d time.Duration) time.Duration {
	if rnd.IntN(4) > 0 {
		d /= 10
	}
	return time.Duration(rnd.Int64N(int64(d) + 1))
}

// play plays the schedule: a busy time, and then a calm one at whose end everything must be final.
func (s *sim) play() {
	s.bells = s.load.IntN(2) == 0
	s.topics = []string{"handled", "batched", "slow", "sent", "sent2", "routed"}[:1+s.load.IntN(6)]
	if s.bells { // who waits at a limit that another process has filled finds that in a poll
		s.topics = slices.DeleteFunc(s.topics, func(topic string) bool { return topic == limitedTopic })
		s.faults.Without(needPolls...)
	}
	s.result.Processes, s.result.Busy = 1+s.load.IntN(3), cmp.Or(s.sched.Busy, busy)
	if s.sched.Processes > 0 {
		s.result.Processes = s.sched.Processes
	}
	for range s.result.Processes {
		s.startProc(false)
	}
	s.after(time.Second, s.sweepOften)
	for end := s.now.Add(s.result.Busy); s.now.Before(end); {
		s.enqueueSome()
		s.happen()
		s.until(s.now.Add(upTo(s.load, time.Second)))
	}
	s.calmDown()
	s.finish()
	s.probe()
	s.stopAll()
}

// finish waits until everything is final.
func (s *sim) finish() {
	began, bound := s.now, finished
	if s.skew < 0 {
		bound -= s.skew // leases and pauses last longer
	}
	for _, r := range s.rows {
		if r.poison {
			bound += time.Duration(r.Max) * 3 * lease
		}
	}
	undone := func(r *Row) bool { return !r.abandoned }
	for slices.ContainsFunc(s.rows, undone) && s.now.Before(began.Add(bound)) {
		s.until(s.now.Add(200 * time.Millisecond))
	}
	s.counts["calm ms"] = max(s.counts["calm ms"], int(s.now.Sub(began)/time.Millisecond))
	s.requireNoTrace()
	for _, r := range s.all {
		s.require(r.Final != "" || r.abandoned, "liveness",
			"event %s of %s is not final %s after the last fault: attempts %d of %d, leased %v until %s, due %s", r.name(), r.Topic,
			bound, r.Attempts, r.Max, r.leased(), r.LockedUntil.Sub(start), r.Due.Sub(start))
		s.require(r.Final != "delivered" || r.handled > 0, "I1", "event %s is delivered, and nobody has handled it", r.name())
		s.require(!r.rolledBack || r.handled == 0, "I2", "event %s was rolled back, and is handled", r.name())
		if !r.abandoned {
			s.counts[r.Final]++
		}
	}
}

// probe enqueues when nothing is to be done, and no late claim is on its way that would lease what nobody then knows of: each
// event begins soon.
func (s *sim) probe() {
	s.until(s.now.Add(latest))
	if slices.ContainsFunc(s.rows, func(r *Row) bool { return r.abandoned }) {
		return
	}
	for range 3 {
		s.until(s.now.Add(upTo(s.load, 10*time.Second)))
		before := len(s.all)
		s.enqueue(0)
		s.until(s.now.Add(begins))
		for _, r := range s.all[before:] {
			s.require(r.seen > 0 || r.Final != "", "liveness", "event %s of %s has not begun %s after it was enqueued", r.name(), r.Topic, begins)
		}
	}
	s.until(s.now.Add(20 * time.Second))
}

// stopAll stops all processes, which leave nothing.
func (s *sim) stopAll() {
	s.over = true
	for _, p := range slices.Clone(s.procs) {
		s.stop(p)
	}
	s.until(s.now.Add(shutdown + 3*time.Second))
	for _, p := range s.procs {
		s.require(p.ended, "I11", "%s does not stop", p.name)
	}
	for _, r := range s.all {
		s.require(!r.leased() || r.abandoned, "I11", "event %s is leased at the end", r.name())
		s.require(r.busy == nil, "I11", "a transaction has event %s locked at the end", r.name())
	}
}

// startProc starts a dispatcher, or a drain.
func (s *sim) startProc(drain bool) {
	if s.over { // it was to replace one that has ended
		return
	}
	s.started++
	p := &proc{
		sim: s, name: fmt.Sprintf("p%d", s.started), calls: make(map[string]bool), running: make(map[*core.Task]bool),
		id: uuid.UUID{0: 0xff, 15: byte(s.started), 14: byte(s.started >> 8)}, inFlight: make(map[*Row]*core.Task),
		rnd: rand.New(rand.NewPCG(s.sched.Seed+s.sched.Salt, uint64(100+s.started))), began: s.now,
	}
	if p.version = 2; !s.calm && p.rnd.IntN(3) == 0 {
		p.version = 1
	}
	s.note(p.name, fmt.Sprintf("starts, drain %v, knows version %d", drain, p.version))
	p.cfg = p.config(drain)
	p.core = core.New(s.now, p.cfg)
	s.procs = append(s.procs, p)
	p.tell(core.Started{})
	if !drain {
		s.after(p.upTo(5*time.Second), func() {
			if p.listed = !p.stopping; p.listed {
				p.tell(core.Listed{})
			}
		})
	}
}

// sweepOften is what all processes do: each second, one of them sweeps.
func (s *sim) sweepOften() {
	if !s.now.Before(s.database) {
		s.sweepAs(nil)
	}
	s.after(time.Second, s.sweepOften)
}

// sweepAs sweeps for p, or for somebody who has nothing in flight.
func (s *sim) sweepAs(p *proc) {
	valid := make(map[*Row]bool)
	for _, r := range s.rows {
		valid[r] = r.leased() && !r.LockedUntil.Before(s.db())
	}
	died, noted := s.Sweep(s.db(), lease, func(r *Row) bool { return p == nil || p.inFlight[r] == nil })
	if len(died)+noted > 0 {
		s.flush()
	}
	for _, r := range died {
		s.note("sweep", "event "+r.name()+" is dead")
		s.require(!valid[r], "I4", "event %s is swept while its lease holds", r.name())
	}
}
