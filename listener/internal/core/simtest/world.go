// Package simtest plays random schedules of several processes with several shards of a listener against a model of the
// tables, in virtual time, with faults. See docs/inside/testing.md.
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
	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// Machine is the shard of a listener.
func Machine() *simulation.Machine {
	return &simulation.Machine{Name: "listener", Rates: rates, Controls: controls, Play: play}
}

// rates says how rare the faults are.
var rates = simulation.Rates{
	// of statements
	simulation.Cut: 40, simulation.Unanswered: 40, simulation.Late: 80, simulation.Locked: 8,
	// of a moment
	simulation.Kill: 4, simulation.Stop: 8, simulation.Away: 8, simulation.Reshard: 8, simulation.Pause: 8, simulation.Restart: 16,
	simulation.Down: 12, simulation.ClockStep: 16, simulation.Exhausted: 8, simulation.LimitChange: 16,
	// of an event
	simulation.NewVersion: 15, simulation.Failure: 20, simulation.Poison: 60, simulation.LateCommit: 6, simulation.Rollback: 20,
	simulation.Unsynced: 2,
	// of a ring and a call
	simulation.LostRing: 20, simulation.DoubledRing: 20, simulation.Slow: 200,
}

const (
	leaseDuration = 3 * time.Second
	shutdown      = 2 * time.Second
	stormy        = 30 * time.Second // of faults
	patience      = 60 * time.Second // in which all is done when nothing goes wrong
	rounds        = 30               // of events that are enqueued when all is done
)

// world is one schedule.
type world struct {
	*rand.Rand // how long things take
	tables
	sched  *simulation.Schedule
	faults *simulation.Faults
	load   *rand.Rand // what is enqueued
	result *simulation.Result
	counts map[string]int
	trace  simulation.Trace

	began    time.Time
	now      time.Time
	storm    bool // things go wrong
	actions  actions
	n        uint64 // actions, to order those of the same time
	mode     core.Config
	rated    bool // attempts must often wait for the rate
	procs    []*process
	effects  map[int64]int // how often each event was handled
	seen     map[int64]int // how often each was given to a handler
	running  map[int64][]*call
	poisonTx set           // events that break the commit of their transaction
	poison   set           // events that kill their process
	failing  map[int64]int // how often each event fails before it succeeds
	open     []*row        // of transactions that have not committed
	away     [2]time.Time  // until when each of the targets is away
	database time.Time     // until when the database does not answer
	epoch    int           // of the server
	skew     time.Duration // of the clock of the database
	stepped  bool          // it was stepped
	excused  bool          // something has gone wrong that explains that events are handled again
	was      map[*cursor]cursor

	commits   int          // that did not wait for the disk
	unflushed []commitment // that are not on disk yet, in their order
	lost      []*row       // that a restart of the server has undone
}

// process is a process that runs the listener.
type process struct {
	w         *world
	name      string
	id        uuid.UUID
	cores     []*shard
	stopping  bool
	cut       bool // all statements fail
	gone      bool // it was killed, or has ended
	frozen    bool
	held      []func() // what happens when it goes on
	exhausted time.Time
	asleep    bool // an enqueue wakes it
	topics    [2]*core.Topic
	targets   [2]*target
	newerAt   time.Time // when it met an event of an unknown version
}

// shard is the shell of a core.
type shard struct {
	p        *process
	number   int
	core     *core.Core
	activity core.Activity
	tick     uint64 // the latest timer
	effects  []int64
	workers  int
	batch    *core.Batch
	lost     bool // the handlers of batch were told that the lease is lost
	late     bool // a statement has taken effect late: it may have ended a lease whose holder does not know
	// endedLate is the number of the latest lease that one has ended. Its holder knows when it renews it next, and until then
	// what it does has no effect.
	endedLate int64
	untold    *core.Lease // it was taken, and nobody was told of its end
	renewing  *core.Lease
}

// call is an event that a handler has.
type call struct {
	s     *shard
	batch *core.Batch
}

type action struct {
	at time.Time
	n  uint64
	do func()
}

type actions []action

func (a actions) Len() int { return len(a) }
func (a actions) Less(i, j int) bool {
	return a[i].at.Before(a[j].at) || a[i].at.Equal(a[j].at) && a[i].n < a[j].n
}
func (a actions) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *actions) Push(x any)   { *a = append(*a, x.(action)) }
func (a *actions) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// after does something later.
func (w *world) after(d time.Duration, do func()) {
	w.n++
	heap.Push(&w.actions, action{w.now.Add(d), w.n, do})
}

func (w *world) random(d time.Duration) time.Duration { return time.Duration(w.Int64N(int64(d) + 1)) }

// chance is true in one of n cases, while things go wrong.
func (w *world) chance(n int) bool { return w.storm && w.IntN(n) == 0 }

// db is the time by the clock of the database.
func (w *world) db() time.Time { return w.now.Add(w.skew) }

func (w *world) fail(invariant, format string, args ...any) {
	panic(simulation.Violated(invariant, format, args...))
}

func (w *world) note(who, what string) {
	if w.trace != nil {
		w.trace(w.now.Sub(w.began), who, what)
	}
}

func (w *world) newID() (id uuid.UUID) {
	for i := range id {
		id[i] = byte(w.Uint32())
	}
	return id
}

// play plays a schedule.
func play(sched *simulation.Schedule, trace simulation.Trace) (result *simulation.Result) {
	result = &simulation.Result{Counts: make(map[string]int)}
	w := &world{
		Rand: rand.New(rand.NewPCG(sched.Seed+sched.Salt, 1)), load: rand.New(rand.NewPCG(sched.Seed, 2)), sched: sched,
		faults: simulation.NewFaults(sched, rates), trace: trace, storm: true, effects: make(map[int64]int), counts: result.Counts,
		failing: make(map[int64]int), seen: make(map[int64]int), running: make(map[int64][]*call), result: result,
		was: make(map[*cursor]cursor),
	}
	w.began = time.Unix(1_000_000, 0)
	w.now = w.began
	w.ended = make(map[uuid.UUID]bool)
	w.without, w.lease, w.alone = sched.Without, leaseDuration, 20
	defer func() { result.Faults = w.faults.Happened }()
	defer simulation.Catch(result, func() time.Duration { return w.now.Sub(w.began) })
	w.configure()
	result.Processes, result.Busy = 1+w.load.IntN(3), cmp.Or(sched.Busy, stormy)
	if sched.Processes > 0 {
		result.Processes = sched.Processes
	}
	for range result.Processes {
		w.start(1 + w.load.IntN(2))
	}
	w.after(0, w.produce)
	w.after(w.random(4*time.Second), w.disturb)
	w.after(result.Busy, w.calmDown)
	for len(w.actions) > 0 {
		next := heap.Pop(&w.actions).(action)
		w.now = next.at
		next.do()
	}
	w.requireNothingLeft()
	return result
}

// configure draws the configuration of the listener.
func (w *world) configure() {
	w.mode = core.Config{
		BatchSize: 1 + w.load.IntN(4), LeaseBatches: 3, ParkedKeys: 3, Concurrency: 1,
		Transactional: w.load.IntN(3) == 0, ParkKeys: w.load.IntN(2) == 0, MaxAttempts: 3,
		BaseDelay: time.Millisecond, MaxDelay: 50 * time.Millisecond, FirstPause: 10 * time.Millisecond,
		LeaseDuration: leaseDuration, PollInterval: time.Second, ShutdownTimeout: shutdown, PauseLimit: time.Second,
		LeaseAge: 50 * time.Millisecond, TakeOverAfter: 100 * time.Millisecond,
		Random: w.random, NewID: w.newID,
	}
	if !w.mode.Transactional && w.load.IntN(2) == 0 {
		w.mode.Concurrency = 3
	}
	if w.load.IntN(2) == 0 {
		w.mode.Batch, w.mode.LeaseBatches = 1+w.load.IntN(w.mode.BatchSize), 1
		if w.load.IntN(2) == 0 {
			w.mode.Wait = time.Duration(w.load.Int64N(int64(300 * time.Millisecond)))
		}
	} else if !w.mode.Transactional {
		w.mode.Grows = w.load.IntN(2) == 0
	}
	w.mode.Together = (w.mode.Batch + 1) / 2
	if w.mode.Grows {
		w.mode.Together = (w.mode.BatchSize + 1) / 2
	}
	for range 1 + w.load.IntN(3) {
		w.shards = append(w.shards, &cursor{lo: set{false}})
	}
	w.rated = w.load.IntN(3) == 0
}

// produce enqueues events. Those of a key commit in the order of their seqs; others may commit late.
func (w *world) produce() {
	if !w.storm {
		return
	}
	for range 1 + w.load.IntN(5) {
		key := w.load.IntN(6)
		n := w.result.Events
		if w.result.Events++; !w.sched.Has(n) {
			continue
		}
		w.addTrouble(w.enqueue(key))
	}
	heldKey := fmt.Sprint("k", w.load.IntN(6)) // its transactions stay open
	_, holds := w.faults.Draw(simulation.LateCommit)
	syncs := time.Duration(0) // all of them wait for the disk
	if f, is := w.faults.Draw(simulation.Unsynced); is {
		syncs = 1 + f.UpTo(walDelay)
	}
	var open []*row
	for _, r := range w.open {
		switch {
		case r.rollsBack:
			w.note("producer", fmt.Sprint("FAULT: event ", r.seq, " is rolled back"))
		case hasKey(open, r.key) || holds && r.key == heldKey:
			w.note("producer", fmt.Sprint("FAULT: event ", r.seq, " stays uncommitted"))
			open = append(open, r)
		default:
			w.commitEvent(r, syncs)
		}
	}
	w.open = open
	w.ring()
	w.after(time.Duration(w.load.Int64N(int64(800*time.Millisecond))), w.produce)
}

// addTrouble decides what is wrong with an event, and leaves its transaction open.
func (w *world) addTrouble(r *row) {
	if _, is := w.faults.Draw(simulation.NewVersion); is {
		r.version = 2
	}
	if f, is := w.faults.Draw(simulation.Failure); is {
		if w.failing[r.seq] = 1 + f.Pick1(4); w.mode.Transactional && f.Pick2(3) == 0 {
			w.failing[r.seq] = 0
			w.poisonTx.add(r.seq)
		}
	}
	if _, is := w.faults.Draw(simulation.Poison); is && w.counts["poison"] < 2 {
		w.poison.add(r.seq)
		w.counts["poison"]++
		w.excused = true
	}
	_, r.rollsBack = w.faults.Draw(simulation.Rollback)
	w.note("producer", fmt.Sprintf("enqueues event %d of key %s, version %d, fails %d times, breaks its transaction %v, kills %v", r.seq,
		r.key, r.version, w.failing[r.seq], w.poisonTx.has(r.seq), w.poison.has(r.seq)))
	w.open = append(w.open, r)
}

// enqueue adds an event to the log, which has not committed yet.
func (w *world) enqueue(key int) *row {
	r := &row{seq: int64(len(w.log) + 1), key: fmt.Sprint("k", key), bucket: key * 7, version: 1, target: key % 2}
	w.log = append(w.log, r)
	return r
}

func hasKey(rows []*row, key string) bool {
	return slices.ContainsFunc(rows, func(r *row) bool { return r.key == key })
}

// ring wakes the processes that are asleep.
func (w *world) ring() {
	if w.lacks("ring") {
		return
	}
	for _, p := range w.procs {
		if !p.asleep || p.gone {
			continue
		}
		if _, lost := w.faults.Draw(simulation.LostRing); lost {
			w.note(p.name, "FAULT: a ring is lost")
			continue
		}
		p.wakeAll()
		if _, doubled := w.faults.Draw(simulation.DoubledRing); doubled {
			p.wakeUp()
		}
	}
}

func (p *process) wakeAll() {
	p.asleep = false
	p.wakeUp()
}

func (p *process) wakeUp() {
	for _, s := range p.cores {
		s.later(p.w.random(time.Millisecond), core.Woken{})
	}
}

// round waits until all is done. Then it enqueues a few events, a while apart or at nearly the same time, and begins
// the next round, until n of them are over.
func (w *world) round(n int) {
	limit := w.now.Add(patience)
	if w.skew < 0 {
		limit = limit.Add(-w.skew)
	}
	var wait func()
	wait = func() {
		switch undone := w.undone(); {
		case undone != "" && w.now.After(limit):
			w.fail("liveness", "%s", undone)
		case undone != "":
			w.after(10*time.Millisecond, wait)
		case n == 0:
			for _, p := range w.procs {
				p.stop()
			}
		default:
			for range 1 + w.IntN(3) {
				w.after(w.random(6*time.Millisecond), func() {
					w.commitEvent(w.enqueue(w.IntN(6)), 0)
					if w.IntN(2) == 0 {
						w.ring()
						return
					}
					for _, p := range w.procs { // as when a call of a publisher has returned: the doorbell does not know
						p.wakeUp()
					}
				})
			}
			w.after(6*time.Millisecond, func() { w.round(n - 1) })
		}
	}
	wait()
}

// undone tells what is left to do.
func (w *world) undone() string {
	for _, r := range w.log[w.done:] {
		if r.visible && w.effects[r.seq] == 0 && !w.dead.has(r.seq) {
			return fmt.Sprintf("event %d of key %s is not handled", r.seq, r.key)
		}
		w.done++
	}
	if n := len(w.parked); n > 0 {
		return fmt.Sprintf("%d events are parked", n)
	}
	return ""
}
