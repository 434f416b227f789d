// Package coresim plays random schedules of several processes with several shards against a toy model of the tables, and
// checks what must hold in each: no event is passed that is not done, those of a key are handled in order, a transaction
// takes effect once, a core that is told to stop stops, and none sleeps for good while there is work.
package coresim

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/listener/internal/core"
)

var topic = &core.Topic{Version: 1}

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
	procs    []*process
	effects  map[int64]int // how often each event was handled
	poisonTx set           // events that break the commit of their transaction
	failing  map[int64]int // how often each event fails before it succeeds
	open     []*row        // of transactions that have not committed
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
		BatchSize: 1 + w.IntN(4), LeaseBatches: 3, ParkedKeys: 3, Transactional: w.IntN(3) == 0, ParkKeys: w.IntN(2) == 0, Concurrency: 1,
		MaxAttempts: 3, BaseDelay: time.Millisecond, MaxDelay: 50 * time.Millisecond, FirstPause: 10 * time.Millisecond,
		LeaseDuration: leaseDuration, PollInterval: time.Second, ShutdownTimeout: shutdown, PauseLimit: time.Second,
		LeaseAge: 50 * time.Millisecond, TakeOverAfter: 100 * time.Millisecond,
		Random: w.random, NewID: w.newID,
	}
	if !w.mode.Transactional && w.IntN(2) == 0 {
		w.mode.Concurrency = 3
	}
	for range 1 + w.IntN(3) {
		w.shards = append(w.shards, &cursor{lo: set{false}})
	}
	for range 1 + w.IntN(3) {
		w.start()
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
	r := &row{seq: int64(len(w.log) + 1), key: fmt.Sprint("k", key), bucket: key * 7, version: 1}
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
	switch w.IntN(6) {
	case 0, 1:
		w.procs[w.IntN(len(w.procs))].gone = true
	case 2:
		w.procs[w.IntN(len(w.procs))].stop()
	case 3:
		if w.reshardTo == 0 {
			w.reshardTo = 1 + w.IntN(3)
		}
	default:
		if len(w.procs) < 8 {
			w.start()
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
	w.start()
	w.ring()
	w.round(20)
}

// round waits until all is done. Then it enqueues a few events, a while apart or at nearly the same time, and begins the
// next round, until n of them are over.
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

// start starts a process.
func (w *world) start() {
	p := &process{w: w, id: w.newID()}
	w.procs = append(w.procs, p)
	p.generation(len(w.shards))
	w.after(time.Second, p.poll)
}

// poll is what a process does in addition to being woken.
func (p *process) poll() {
	if p.gone || !p.w.storm {
		return
	}
	p.wakeAll()
	p.w.after(time.Second, p.poll)
}

func (p *process) generation(shards int) {
	p.cores = nil
	for i := range shards {
		cfg := p.w.mode
		cfg.Shard, cfg.Shards = i, shards
		s := &shard{p: p, number: i, core: core.New(cfg)}
		p.cores = append(p.cores, s)
		s.later(p.w.random(time.Millisecond), core.Started{})
	}
}

// stop ends a process gracefully, and requires that it ends.
func (p *process) stop() {
	if p.gone || p.stopping {
		return
	}
	p.stopping = true
	for _, s := range p.cores {
		s.step(core.Stop{})
	}
	p.w.after(shutdown+time.Second, func() {
		for _, s := range p.cores {
			s.step(core.GiveUp{})
		}
	})
	p.w.after(shutdown+2*time.Second, func() {
		p.cut = true
		for _, s := range p.cores {
			s.step(core.Cut{})
		}
	})
	p.w.after(shutdown+3*time.Second+leaseDuration, func() {
		for _, s := range p.cores {
			if !p.gone && !s.core.Over() {
				p.w.fail("shard %d of a process that was told to stop is %v", s.number, s.core.State())
			}
		}
	})
}

// onOver follows when a core is over: the others of its process stop when the number of shards has changed.
func (s *shard) onOver() {
	p := s.p
	if s.core.State() == core.Reshaped && !p.stopping {
		for _, other := range p.cores {
			if !other.core.Over() {
				other.step(core.Stop{})
			}
		}
	}
	shards := 0
	for _, each := range p.cores {
		if !each.core.Over() {
			return
		}
		shards = max(shards, each.core.Shards())
	}
	switch {
	case p.gone:
	case shards > 0 && !p.stopping:
		p.generation(shards)
	default:
		p.gone = true
		for _, c := range p.w.shards { // ListenerRelease
			if c.preferred == p.id {
				c.preferred, c.wantedBy = uuid.UUID{}, uuid.UUID{}
				if !c.running {
					c.leaseNo++
				}
			}
			if c.wantedBy == p.id {
				c.wantedBy = uuid.UUID{}
			}
		}
		p.w.ring()
	}
}

// later tells the core something later, unless it is gone by then.
func (s *shard) later(d time.Duration, in core.Event) {
	s.p.w.after(d, func() { s.step(in) })
}

// step tells the core what happened, and does what it says.
func (s *shard) step(in core.Event) {
	if s.p.gone || s.core.Over() || s.p.w.err != nil {
		return
	}
	if _, is := in.(core.Renewed); is {
		s.renewing = nil
	}
	commands := s.core.Step(s.p.w.now, in)
	commands = append([]core.Command(nil), commands...)
	s.p.w.note(step{s.p.w.now, s.p.id, s.number, in, s.core.State(), commands})
	for _, cmd := range commands {
		s.do(cmd)
	}
	if s.p.w.chance(50) { // a tick may come at any time
		s.later(s.p.w.random(5*time.Millisecond), core.Tick{})
	}
	if s.core.Over() {
		if err := s.core.Err(); err != nil && s.p.w.storm == false && !s.p.stopping {
			s.p.w.fail("shard %d has stopped: %w", s.number, err)
		}
		s.onOver()
	}
}

// step is one step of a core, to be told when something goes wrong.
type step struct {
	at       time.Time
	process  uuid.UUID
	number   int
	in       core.Event
	state    core.State
	commands []core.Command
}

func (s step) String() string {
	text := fmt.Sprintf("%s %x/%d %T -> %v", s.at.Format("04:05.000"), s.process[:2], s.number, s.in, s.state)
	for _, cmd := range s.commands {
		text += fmt.Sprintf(" %T", cmd)
	}
	return text
}

// told is how many of the latest steps are told.
const told = 60

func (w *world) note(s step) {
	if w.trace = append(w.trace, s); len(w.trace) > 10*told {
		w.trace = append(w.trace[:0], w.trace[len(w.trace)-told:]...)
	}
}

var errDown = errors.New("the database does not answer")

// call runs a statement: at once or late, and the answer may be lost.
func (s *shard) call(run func() core.Event) {
	w := s.p.w
	there, back := w.random(2*time.Millisecond), w.random(time.Millisecond)
	switch {
	case s.p.cut:
		s.later(0, core.Failed{Err: errDown, Cut: true})
	case w.chance(40): // the request is lost
		s.later(there+back, core.Failed{Err: errDown})
	case w.chance(40): // the answer is lost
		w.after(there, func() { run() })
		s.later(there+back, core.Failed{Err: errDown})
	case w.chance(80): // it arrives long after its sender has given up
		s.later(there+back, core.Failed{Err: errDown})
		w.after(w.random(leaseDuration), func() { run() })
	default:
		if w.chance(100) {
			there += w.random(leaseDuration)
		}
		w.after(there, func() {
			answer := run()
			s.later(back, answer)
		})
	}
}

// do does what the core says.
func (s *shard) do(cmd core.Command) {
	w, by := s.p.w, s.p.id
	switch cmd := cmd.(type) {
	case core.Check:
		s.call(func() core.Event {
			row, ok := w.wait(s.number, by, w.now)
			return core.Checked{Gone: !ok, Wait: row}
		})
	case core.RoundTrip:
		if cmd.End != nil && cmd.End.Lease == s.renewing {
			w.fail("a lease of shard %d is ended while it is renewed", s.number)
		}
		s.call(func() core.Event { return s.roundTrip(cmd) })
	case core.AskLease:
		s.call(func() core.Event {
			if s.number >= len(w.shards) {
				return core.LeaseState{}
			}
			c := w.shards[s.number]
			return core.LeaseState{Known: true, ID: c.leaseID, No: c.leaseNo, Running: c.running}
		})
	case core.ReadFirst:
		s.call(func() core.Event {
			lease := cmd.Lease
			if lease.Events, lease.Scanned = nil, 0; w.holds(s.number, by, lease.No) {
				w.read(s.number, lease)
			}
			return core.Read{}
		})
	case core.TakeParked:
		s.call(func() core.Event { return core.ParkedTaken{Events: w.takeParked(s.number, by, cmd, w.now)} })
	case core.Charge:
		s.call(func() core.Event {
			ours := w.holds(s.number, by, cmd.Lease.No)
			if ours {
				c := w.shards[s.number]
				c.lastSeq, c.retryCount = cmd.Entry.Seq-1, cmd.Entry.Attempt
			}
			return core.Charged{Ours: ours}
		})
	case core.Begin:
		s.call(func() core.Event { return core.Begun{} })
	case core.Commit:
		s.commit(cmd.End)
	case core.Abandon:
		cmd.Batch.Abandon()
		s.later(0, core.Handled{Batch: cmd.Batch, Running: cmd.Batch.Running()})
	case core.FindKnowing:
		s.later(w.random(time.Millisecond), core.Knowing{})
	case core.Reshard:
		s.call(func() core.Event { return core.Resharded{Stepped: w.reshard()} })
	case core.ReadShards:
		s.call(func() core.Event { return core.Registered{Shards: len(w.shards)} })
	case core.Handle:
		s.handle(cmd.Batch)
	case core.Prefetch:
		p := cmd.Ahead
		w.after(w.random(2*time.Millisecond), func() {
			if p.Failed = w.chance(20); !p.Failed {
				w.readNext(s.number, by, p, w.mode.BatchSize)
			}
			d := time.Duration(0)
			if w.chance(10) {
				d = w.random(200 * time.Millisecond)
			}
			s.later(d, core.Prefetched{Ahead: p})
		})
	case core.Renew:
		s.renew(cmd.Lease)
	case core.StopHandlers:
		cmd.Batch.LoseLease()
	case core.WakeOthers:
		for _, p := range w.procs {
			if !p.gone {
				p.wakeAll()
			}
		}
	case core.RequestShard:
		if s.number < len(w.shards) && w.IntN(4) == 0 {
			w.shards[s.number].wantedBy = by
		}
	case core.Timer:
		s.tick++
		tick := s.tick
		w.after(max(cmd.At.Sub(w.now), 0), func() {
			if tick == s.tick {
				s.step(core.Tick{})
			}
		})
	case core.TellTaken:
		if cmd.Lease != nil && s.untold != nil && s.untold != cmd.Lease {
			w.fail("nobody was told of the end of a lease of shard %d", s.number)
		}
		if cmd.Lease != nil {
			s.untold = cmd.Lease
		}
	case core.TellUndone:
		s.untold = nil
	case core.TellEnd:
		s.untold = nil
		switch ended := w.ended[cmd.End.Lease.ID]; {
		case cmd.Moved && !ended:
			w.fail("shard %d counts the end of a lease that was lost", s.number)
		case !cmd.Moved && ended && s.number < len(w.shards) && w.shards[s.number].leaseID == cmd.End.Lease.ID:
			w.fail("shard %d takes a lease for lost that it has ended", s.number)
		}
	case core.Report:
		s.activity = cmd.Activity
		s.p.report()
	}
}

// report asks the doorbell when all shards of the process have found nothing. When it watches, each checks once more.
func (p *process) report() {
	idle := false
	for _, s := range p.cores {
		if s.activity == core.IsWorking || s.activity == core.IsChecking {
			p.asleep = false
			return
		}
		idle = idle || s.activity == core.IsIdle
	}
	if idle && !p.asleep {
		p.w.after(p.w.random(time.Millisecond), func() {
			if !p.gone && !p.asleep {
				p.wakeAll()
				p.asleep = true
			}
		})
	}
}

// roundTrip ends a lease and takes the next one.
func (s *shard) roundTrip(cmd core.RoundTrip) core.Event {
	w := s.p.w
	var answer core.Moved
	if cmd.End != nil {
		w.checkEnd(s.number, s.p.id, cmd.End, nil)
		answer.Moved = w.advance(s.number, s.p.id, cmd.End, w.now)
	}
	if t := cmd.Take; t != nil {
		answer.Lease = &core.Lease{ID: t.ID, BatchSize: t.BatchSize, ScanSize: t.ScanSize, Deadline: w.now.Add(leaseDuration - 50*time.Millisecond)}
		w.take(s.number, s.p.id, t, leaseDuration, w.now, answer.Lease)
	}
	return answer
}

// checkEnd requires that the end of a lease passes no event that is not done. done are those of its own transaction.
func (w *world) checkEnd(shard int, by uuid.UUID, a *core.End, done []int64) {
	if !w.holds(shard, by, a.Lease.No) {
		return
	}
	c := w.shards[shard]
	var settled set
	for _, list := range [][]int64{a.Dead.Seqs, a.Parking.Seqs, done} {
		for _, seq := range list {
			settled.add(seq)
		}
	}
	for _, r := range w.window(c, c.hi) {
		passed := a.Closes || r.seq <= a.LastSeq
		for i, seq := range a.AheadSeqs {
			passed = passed || seq == r.seq && a.AheadAttempts[i] == 0
		}
		n, before := c.ahead[r.seq]
		if r.bucket%len(w.shards) == shard && passed && !settled.has(r.seq) && w.effects[r.seq] == 0 && !(before && n == 0) {
			w.fail("shard %d passes event %d of key %s, which is not done", shard, r.seq, r.key)
		}
	}
}

// commit ends a lease in its transaction. What its handlers did takes effect then.
func (s *shard) commit(a *core.End) {
	w := s.p.w
	done := s.effects
	if a.Lease == s.renewing {
		w.fail("a lease of shard %d is ended while it is renewed", s.number)
	}
	for _, seq := range done {
		if w.poisonTx.has(seq) {
			s.later(w.random(time.Millisecond), core.CommitFailed{Err: errDown, Alive: true, Result: errclass.Result{Class: errclass.ClassFailed, Text: "poison"}})
			return
		}
	}
	run := func() (moved bool) {
		w.checkEnd(s.number, s.p.id, a, done)
		if moved = w.advance(s.number, s.p.id, a, w.now); moved {
			for _, seq := range done {
				w.effect(seq)
			}
		}
		return moved
	}
	switch {
	case w.chance(30):
		s.later(w.random(time.Millisecond), core.CommitFailed{Err: errDown})
	case w.chance(30):
		w.after(w.random(time.Millisecond), func() { run() })
		s.later(2*time.Millisecond, core.CommitFailed{Err: errDown})
	default:
		w.after(w.random(time.Millisecond), func() { s.later(0, core.Committed{Moved: run()}) })
	}
}

// effect records that an event was handled, and requires that those of its key before it are over.
func (w *world) effect(seq int64) {
	r := w.bucketOf(seq)
	for _, earlier := range w.log[:seq-1] {
		if earlier.key == r.key && w.effects[earlier.seq] == 0 && !w.dead.has(earlier.seq) && !w.dying(earlier.seq) {
			w.fail("event %d of key %s was handled before event %d", seq, r.key, earlier.seq)
		}
	}
	if w.effects[seq]++; w.effects[seq] > 1 && w.mode.Transactional {
		w.fail("event %d took effect twice", seq)
	}
}

// dying reports whether an event has failed for good in a lease whose end is not written yet.
func (w *world) dying(seq int64) bool {
	return w.failing[seq] >= w.mode.MaxAttempts || w.poisonTx.has(seq)
}

// handle runs the handlers of a batch.
func (s *shard) handle(b *core.Batch) {
	s.batch, s.effects, s.workers = b, nil, min(s.p.w.mode.Concurrency, b.Len())
	if s.workers == 0 {
		s.later(0, core.Handled{Batch: b})
		return
	}
	for range s.workers {
		s.worker(b)
	}
}

func (s *shard) worker(b *core.Batch) {
	w := s.p.w
	if s.p.gone {
		return
	}
	b.Stopping = s.p.stopping
	e := b.Next(w.now)
	if e == nil {
		if s.workers--; s.workers == 0 && s.batch == b {
			s.later(0, core.Handled{Batch: b})
		}
		return
	}
	d := w.random(3 * time.Millisecond)
	switch {
	case w.chance(200):
		d = w.random(3 * leaseDuration)
	case w.chance(500):
		d = max(w.began.Add(stormy).Sub(w.now), 0) // it hangs
	}
	w.after(d, func() {
		if s.p.gone {
			return
		}
		r := errclass.Result{}
		if w.failing[e.Seq] >= e.Attempt {
			r = errclass.Result{Class: errclass.ClassFailed, Text: "failed"}
		} else if w.mode.Transactional {
			s.effects = append(s.effects, e.Seq)
		} else {
			w.effect(e.Seq)
		}
		b.Stopping = s.p.stopping
		b.Finish(w.now, e, r)
		s.worker(b)
	})
}

// renew renews a lease.
func (s *shard) renew(lease *core.Lease) {
	w, sent := s.p.w, s.p.w.now
	s.renewing = lease
	if w.chance(4) {
		s.later(w.random(leaseDuration/5), core.Renewed{Lease: lease, Failed: true})
		return
	}
	w.after(w.random(time.Millisecond), func() {
		if !w.holds(s.number, s.p.id, lease.No) {
			s.later(0, core.Renewed{Lease: lease, Lost: true})
			return
		}
		w.shards[s.number].leaseUntil = w.now.Add(leaseDuration)
		s.later(0, core.Renewed{Lease: lease, Sent: sent})
	})
}
