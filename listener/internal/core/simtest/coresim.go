// Package coresim plays random schedules of several processes with several shards against a toy model of the tables,
// and checks what must hold in each: no event is passed that is not done, those of a key are handled in order, a
// transaction takes effect once, a core that is told to stop stops, and none sleeps for good while there is work.
package coresim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/listener/internal/core"
)

const (
	leaseDuration = 3 * time.Second
	shutdown      = 2 * time.Second
	stormy        = 30 * time.Second // of faults
	patience      = 60 * time.Second // in which all is done when nothing goes wrong
)

// world is one schedule.
type world struct {
	*rand.Rand
	tables
	began    time.Time
	now      time.Time
	storm    bool // things go wrong
	actions  actions
	n        uint64 // actions, to order those of the same time
	mode     core.Config
	rated    bool // attempts must often wait for the rate
	versions bool // some events have version 2, which some processes do not know
	procs    []*process
	effects  map[int64]int // how often each event was handled
	poisonTx set           // events that break the commit of their transaction
	failing  map[int64]int // how often each event fails before it succeeds
	open     []*row        // of transactions that have not committed
	away     [2]time.Time  // until when each of the targets is away
	trace    []step
	err      error
}

// process is a process that runs the listener.
type process struct {
	w        *world
	id       uuid.UUID
	cores    []*shard
	stopping bool
	cut      bool // all statements fail
	gone     bool // it was killed, or has ended
	asleep   bool // an enqueue wakes it
	topics   [2]*core.Topic
	targets  [2]*target
	newerAt  time.Time // when it met an event of an unknown version
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
	untold   *core.Lease // it was taken, and nobody was told of its end
	renewing *core.Lease
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

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) newID() (id uuid.UUID) {
	for i := range id {
		id[i] = byte(w.Uint32())
	}
	return id
}

// Run plays the schedule of a seed, and returns what went wrong with the last steps before.
func Run(seed uint64) error {
	w := &world{
		Rand: rand.New(rand.NewPCG(seed, 1)), storm: true, effects: make(map[int64]int),
		failing: make(map[int64]int),
	}
	w.began = time.Unix(1_000_000, 0)
	w.now = w.began
	w.ended = make(map[uuid.UUID]bool)
	w.mode = core.Config{
		BatchSize: 1 + w.IntN(4), LeaseBatches: 3, ParkedKeys: 3, Concurrency: 1,
		Transactional: w.IntN(3) == 0, ParkKeys: w.IntN(2) == 0, MaxAttempts: 3,
		BaseDelay: time.Millisecond, MaxDelay: 50 * time.Millisecond, FirstPause: 10 * time.Millisecond,
		LeaseDuration: leaseDuration, PollInterval: time.Second, ShutdownTimeout: shutdown, PauseLimit: time.Second,
		LeaseAge: 50 * time.Millisecond, TakeOverAfter: 100 * time.Millisecond,
		Random: w.random, NewID: w.newID,
	}
	if !w.mode.Transactional && w.IntN(2) == 0 {
		w.mode.Concurrency = 3
	}
	if w.IntN(2) == 0 {
		w.mode.Batch, w.mode.LeaseBatches = 1+w.IntN(w.mode.BatchSize), 1
		if w.IntN(2) == 0 {
			w.mode.Wait = w.random(300 * time.Millisecond)
		}
	}
	for range 1 + w.IntN(3) {
		w.shards = append(w.shards, &cursor{lo: set{false}})
	}
	w.rated = w.IntN(3) == 0
	w.versions = w.IntN(3) == 0
	for range 1 + w.IntN(3) {
		w.start(1 + w.IntN(2))
	}
	w.after(0, w.produce)
	w.after(w.random(stormy), w.disturb)
	w.after(stormy, w.calmDown)
	for len(w.actions) > 0 && w.err == nil {
		next := heap.Pop(&w.actions).(action)
		w.now = next.at
		next.do()
	}
	if w.err == nil {
		return nil
	}
	for _, s := range w.trace[max(len(w.trace)-told, 0):] {
		w.err = fmt.Errorf("%w\n%s", w.err, s)
	}
	return w.err
}

// produce enqueues events. Those of a key commit in the order of their seqs; others may commit late.
func (w *world) produce() {
	if !w.storm {
		return
	}
	for range 1 + w.IntN(5) {
		r := w.enqueue()
		if w.IntN(20) == 0 {
			w.failing[r.seq] = 1 + w.IntN(4)
		}
		if w.mode.Transactional && w.IntN(60) == 0 {
			w.poisonTx.add(r.seq)
		}
		w.open = append(w.open, r)
	}
	held := fmt.Sprint("k", w.IntN(6)) // its transactions stay open
	var open []*row
	for _, r := range w.open {
		if r.key == held && w.IntN(3) > 0 {
			open = append(open, r)
			held = r.key
			continue
		}
		if hasKey(open, r.key) {
			open = append(open, r)
		} else {
			w.tables.commit(r)
		}
	}
	w.open = open
	w.ring()
	w.after(w.random(800*time.Millisecond), w.produce)
}

// enqueue adds an event to the log, which has not committed yet.
func (w *world) enqueue() *row {
	key := w.IntN(6)
	r := &row{seq: int64(len(w.log) + 1), key: fmt.Sprint("k", key), bucket: key * 7, version: 1, target: key % 2}
	if w.versions && w.IntN(15) == 0 {
		r.version = 2
	}
	w.log = append(w.log, r)
	return r
}

func hasKey(rows []*row, key string) bool {
	for _, r := range rows {
		if r.key == key {
			return true
		}
	}
	return false
}

// ring wakes the processes that are asleep.
func (w *world) ring() {
	for _, p := range w.procs {
		if p.asleep {
			p.wakeAll()
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

// disturb kills, stops and starts processes, and changes the number of shards.
func (w *world) disturb() {
	if !w.storm {
		return
	}
	switch w.IntN(8) {
	case 0, 1:
		w.procs[w.IntN(len(w.procs))].gone = true
	case 2:
		w.procs[w.IntN(len(w.procs))].stop()
	case 3:
		w.away[w.IntN(2)] = w.now.Add(w.random(2 * time.Second))
	case 4:
		if w.reshardTo == 0 {
			w.reshardTo = 1 + w.IntN(3)
		}
	default:
		if len(w.procs) < 8 {
			w.start(1 + w.IntN(2))
		}
	}
	w.after(w.random(4*time.Second), w.disturb)
}

// calmDown ends all faults. From then on nothing polls, so a wake-up that is missing is found.
func (w *world) calmDown() {
	w.storm = false
	for _, r := range w.open {
		w.tables.commit(r)
	}
	w.away = [2]time.Time{}
	if w.IntN(2) == 0 { // a process that is alone cannot be helped by another
		for _, p := range w.procs {
			p.gone = true
		}
	}
	w.start(2)
	w.ring()
	w.round(60)
}

// round waits until all is done. Then it enqueues a few events, a while apart or at nearly the same time, and begins
// the next round, until n of them are over.
func (w *world) round(n int) {
	limit := w.now.Add(patience)
	var wait func()
	wait = func() {
		switch undone := w.undone(); {
		case undone != "" && w.now.After(limit):
			w.fail("%s", undone)
		case undone != "":
			w.after(10*time.Millisecond, wait)
		case n == 0:
			for _, p := range w.procs {
				p.stop()
			}
		default:
			for range 1 + w.IntN(3) {
				w.after(w.random(6*time.Millisecond), func() {
					w.tables.commit(w.enqueue())
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
	for _, r := range w.log {
		if w.effects[r.seq] == 0 && !w.dead.has(r.seq) {
			return fmt.Sprintf("event %d of key %s is not handled", r.seq, r.key)
		}
	}
	if n := len(w.parked); n > 0 {
		return fmt.Sprintf("%d events are parked", n)
	}
	return ""
}
