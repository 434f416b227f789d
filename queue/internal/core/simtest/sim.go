// Package coresim plays random schedules of dispatchers: several cores against a toy of the tables, with lost leases,
// passes that fail with or without a commit, crashes, pauses, targets that rest, and stops. A seed says everything.
package coresim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/internal/machine/sleep"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// Stats says what a schedule has reached.
type Stats struct{ Steps, Delivered, Dead, Crashes, Lost, Recalled, Drains, Batches, Batched int }

func (s *Stats) add(o Stats) {
	s.Steps, s.Delivered, s.Dead = s.Steps+o.Steps, s.Delivered+o.Delivered, s.Dead+o.Dead
	s.Batches, s.Batched = s.Batches+o.Batches, s.Batched+o.Batched
	s.Crashes, s.Lost, s.Recalled, s.Drains = s.Crashes+o.Crashes, s.Lost+o.Lost, s.Recalled+o.Recalled, s.Drains+o.Drains
}

// Run plays the schedule of a seed and returns an error if it breaks an invariant.
// trace, if not nil, gets a line for each event and each command.
func Run(seed uint64, trace func(format string, args ...any)) (stats Stats, err error) {
	s := &sim{rnd: rand.New(rand.NewPCG(seed, 0)), now: start, table: table{pauses: core.NoPauses, starts: make(map[core.Turn][]time.Time)}, trace: trace}
	defer func() {
		stats = s.stats
		if r := recover(); r != nil {
			b, ours := r.(broken)
			if !ours {
				panic(fmt.Sprintf("seed %d: %v", seed, r))
			}
			err = fmt.Errorf("seed %d, after %s: %s", seed, s.now.Sub(start), string(b))
		}
	}()
	s.play()
	return s.stats, nil
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// broken says which invariant does not hold.
type broken string

func (s *sim) require(is bool, format string, args ...any) {
	if !is {
		panic(broken(fmt.Sprintf(format, args...)))
	}
}

// sim is one schedule.
type sim struct {
	rnd   *rand.Rand
	now   time.Time
	queue schedule
	seq   int
	table
	procs    []*proc
	calm     bool // nothing goes wrong any more
	bells    bool // only rings wake: nothing goes wrong that a poll would repair
	topics   []string
	away     map[string]time.Time // until when a target is away
	database time.Time            // until when the database does not answer
	paused   time.Time            // when something was paused last
	open     int                  // transactions that have enqueued without a ring and are not committed
	claims   int
	stats    Stats
	trace    func(format string, args ...any)
}

// schedule is what is to come, a heap by time.
type schedule []moment

type moment struct {
	at  time.Time
	seq int
	do  func()
}

func (q schedule) Len() int { return len(q) }
func (q schedule) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].seq < q[j].seq
}
func (q schedule) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *schedule) Push(x any)   { *q = append(*q, x.(moment)) }
func (q *schedule) Pop() any {
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

// chance is true in one of n cases; never while it is calm.
func (s *sim) chance(n int) bool { return !s.calm && s.rnd.IntN(n) == 0 }

// upTo returns a random duration, which is nearly always short.
func (s *sim) upTo(d time.Duration) time.Duration {
	if s.rnd.IntN(4) > 0 {
		d /= 10
	}
	return time.Duration(s.rnd.Int64N(int64(d) + 1))
}

const (
	shutdown = 5 * time.Second
	busy     = 10 * time.Second
)

// play plays a schedule: a busy time, and then a calm one at whose end everything must be final.
func (s *sim) play() {
	s.away = make(map[string]time.Time)
	s.bells = s.rnd.IntN(2) == 0
	s.topics = []string{"handled", "batched", "slow", "sent", "sent2", "routed"}[:1+s.rnd.IntN(6)]
	if s.bells { // who waits at a limit that another process has filled finds that in a poll
		s.topics = slices.DeleteFunc(s.topics, func(topic string) bool { return topic == limitedTopic })
	}
	for range 1 + s.rnd.IntN(3) {
		s.startProc(false)
	}
	s.after(time.Second, s.sweep)
	end := s.now.Add(busy)
	for s.now.Before(end) {
		s.happen()
		s.until(s.now.Add(s.upTo(time.Second)))
	}
	s.calmDown()
	s.until(s.now.Add(3 * time.Minute))
	for _, r := range s.all {
		s.require(r.final != "" || r.abandoned, "event %s of %s is lost: attempts %d of %d, leased %v until %s, due %s",
			short(r.id), r.topic, r.attempts, r.max, r.leased(), r.lockedUntil.Sub(start), r.due.Sub(start))
		s.require(r.final != "delivered" || r.handled > 0, "event %s is delivered, and nobody has handled it", short(r.id))
		if r.abandoned {
			continue
		}
		if r.final == "delivered" {
			s.stats.Delivered++
		} else {
			s.stats.Dead++
		}
	}
	for _, p := range slices.Clone(s.procs) {
		s.stop(p)
	}
	s.until(s.now.Add(shutdown + 3*time.Second))
	for _, p := range s.procs {
		s.require(p.ended, "%s does not stop", p.name)
	}
}

// sweep makes dead letters of events that no claim takes again, long after their last lease has run out.
func (s *sim) sweep() {
	for _, r := range s.rows {
		if r.leased() && r.attempts >= r.max && r.busy == nil && s.now.Sub(r.lockedUntil) > lease+2*time.Second {
			r.final, r.lockedUntil = "dead", time.Time{}
		}
	}
	s.sort()
	s.after(time.Second, s.sweep)
}

func short(id uuid.UUID) string { return id.String()[:8] }

// happen makes something happen.
func (s *sim) happen() {
	switch n := s.rnd.IntN(100); {
	case n < 50:
		for range 1 + s.rnd.IntN(1+s.rnd.IntN(25)) {
			s.enqueue()
		}
	case n < 58:
		s.pause()
	case n < 66:
		s.resume()
	case n < 72:
		s.database = s.now.Add(s.upTo(3 * time.Second))
	case n < 78 && !s.bells:
		s.away[s.targetName()] = s.now.Add(s.upTo(5 * time.Second))
	case n < 82:
		s.replaceOne()
	case n < 85 && !s.bells:
		s.crashOne()
	case n < 88 && !s.bells:
		s.freezeOne()
	case n < 91:
		s.loseBell()
	case n < 94 && !s.bells:
		s.startProc(true)
	}
}

// replaceOne stops a process, unless it is the only one, and starts another later.
func (s *sim) replaceOne() {
	if p := s.anyProc(); p != nil && len(s.procs) > 1 {
		s.stop(p)
		s.after(s.upTo(2*time.Second), func() { s.startProc(false) })
	}
}

// crashOne crashes a process.
func (s *sim) crashOne() {
	if p := s.anyProc(); p != nil {
		s.crash(p)
	}
}

// freezeOne keeps a process from learning anything for a while.
func (s *sim) freezeOne() {
	if p := s.anyProc(); p != nil && !p.frozen {
		p.frozen = true
		s.after(s.upTo(2*lease), func() { s.thaw(p) })
	}
}

// loseBell takes the doorbell from a process.
func (s *sim) loseBell() {
	if p := s.anyProc(); p != nil {
		p.watches = false
		p.tell(core.Answered{Bell: sleep.Gone})
		s.after(s.upTo(time.Second), func() { s.ring() })
	}
}

// calmDown ends everything that goes wrong.
func (s *sim) calmDown() {
	s.calm, s.database = true, time.Time{}
	clear(s.away)
	for _, p := range slices.Clone(s.procs) {
		s.thaw(p)
	}
	for s.pauses.Any() {
		s.resume()
	}
	if s.anyProc() == nil {
		s.startProc(false)
	}
}

func (s *sim) anyProc() *proc {
	var alive []*proc
	for _, p := range s.procs {
		if !p.stopping && !p.cfg.Drain {
			alive = append(alive, p)
		}
	}
	if len(alive) == 0 {
		return nil
	}
	return alive[s.rnd.IntN(len(alive))]
}

var tenants = []uuid.UUID{{1}, {2}, {3}}

func (s *sim) targetName() string {
	return []string{"handled", "slow", "sent", "routed", "a", "b", "batched"}[s.rnd.IntN(7)]
}

// enqueue enqueues an event. Its transaction may be committed much later.
func (s *sim) enqueue() {
	topic := s.topics[s.rnd.IntN(len(s.topics))]
	r := &row{
		topic: topic, tenant: tenants[s.rnd.IntN(3)], max: 1 + s.rnd.IntN(4), due: s.now,
		destination: []string{"a", "b", "c"}[s.rnd.IntN(3)],
	}
	s.seq++
	r.id[0], r.id[1], r.id[2], r.id[15] = byte(s.seq>>16), byte(s.seq>>8), byte(s.seq), 1
	r.file()
	if s.bells {
		r.max = 100
	} else if s.chance(5) {
		r.due = s.now.Add(s.upTo(10 * time.Second))
	}
	rings := slices.ContainsFunc(s.procs, func(p *proc) bool { return p.watches })
	if !rings {
		s.open++
	}
	took := time.Duration(0)
	if s.chance(4) {
		took = s.upTo(4 * time.Second)
	}
	s.after(took, func() {
		if !rings {
			s.open--
		}
		r.visible, r.changed = true, s.now
		s.all, s.rows = append(s.all, r), append(s.rows, r)
		s.sort()
		if rings {
			s.ring()
		}
	})
}

// ring wakes everybody who listens.
func (s *sim) ring() {
	for _, p := range s.procs {
		s.after(s.upTo(10*time.Millisecond), func() { p.tell(core.Woken{}) })
	}
}

func (s *sim) pause() {
	s.paused = s.now.Add(time.Second)
	keys := slices.Clone(s.pauses.Keys)
	switch s.rnd.IntN(4) {
	case 0:
		s.pauses = core.PausesOf(true, nil)
		return
	case 1:
		keys = append(keys, s.topics[s.rnd.IntN(len(s.topics))])
	default:
		keys = append(keys, tenants[s.rnd.IntN(3)].String())
	}
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
	s.paused = s.now.Add(time.Second)
	s.pauses = core.PausesOf(false, keys)
	for _, p := range s.procs {
		if p.listed {
			s.after(s.upTo(10*time.Millisecond), func() { p.tell(core.Woken{}) })
		}
	}
}

const lease = 10 * time.Second

// startProc starts a dispatcher, or a drain.
func (s *sim) startProc(drain bool) {
	s.seq++
	p := &proc{
		sim: s, name: fmt.Sprintf("core %d", s.seq), calls: make(map[string]bool), running: make(map[*core.Task]bool),
	}
	breaker := config.BreakerWithDefaults(outbox.Breaker{Failures: 3})
	random := func(d time.Duration) time.Duration { return time.Duration(s.rnd.Int64N(int64(d) + 1)) }
	broker := &rest.Target{Name: "broker", Kind: rest.Broker, Breaker: breaker, Random: random}
	handler := func(name string) *core.Target {
		return &core.Target{Rest: &rest.Target{Name: name, Topics: []string{name}, Breaker: breaker, Random: random}}
	}
	destination := func(name string) *core.Target {
		t := &rest.Target{
			Name: name, Topics: []string{name}, Kind: rest.Destination, Breaker: breaker, Broker: broker, Random: random,
		}
		broker.Destinations = append(broker.Destinations, t)
		return &core.Target{Rest: t}
	}
	handled, slow, sent, routed := handler("handled"), handler("slow"), destination("sent"), destination("routed")
	routed.ByEvent = true
	batched := handler("batched")
	batched.Batch = outbox.Batch{Size: 1 + s.rnd.IntN(20), Wait: s.upTo(2 * time.Second)}
	of := map[string]*core.Target{"handled": handled, "batched": batched, "slow": slow, "sent": sent, "sent2": sent, "routed": routed}
	p.cfg = core.Config{
		Targets: []*core.Target{handled, batched, slow, sent, routed}, Pauses: s.pauses,
		BatchSize: 1 + s.rnd.IntN(30), Concurrency: 1 + s.rnd.IntN(8), Ahead: s.rnd.IntN(8),
		LeaseDuration: lease, PollInterval: time.Second, MaxPollInterval: 3 * time.Second, LastAttemptLimit: time.Second,
		Doorbell: s.bells || s.rnd.IntN(2) == 0, Drain: drain, FirstPause: breaker.FirstPause, Random: random,
	}
	if s.bells {
		p.cfg.PollInterval, p.cfg.MaxPollInterval, p.cfg.LeaseDuration = time.Hour, time.Hour, 3*time.Hour
	}
	if drain && s.rnd.IntN(3) == 0 {
		p.cfg.Limit = 1 + s.rnd.IntN(50)
	}
	for _, name := range s.topics {
		p.cfg.Topics = append(p.cfg.Topics, core.Topic{Name: name, Target: of[name], Turns: name == fairTopic || name == limitedTopic, Limits: name == limitedTopic})
	}
	p.began = s.now
	p.core = core.New(s.now, p.cfg)
	s.procs = append(s.procs, p)
	p.tell(core.Started{})
	if !drain {
		s.after(s.upTo(5*time.Second), func() {
			if p.listed = !p.stopping; p.listed {
				p.tell(core.Listed{})
			}
		})
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
	if p.watches {
		p.watches = false
		s.ring()
	}
	s.after(shutdown, func() { p.cancelled = true })
	s.after(shutdown+time.Second, func() { p.tell(core.GiveUp{}) })
	s.after(shutdown+2*time.Second, func() {
		p.databaseOver = true
		p.tell(core.DatabaseOver{})
	})
	s.after(shutdown+2500*time.Millisecond, func() { s.require(p.ended || p.crashed, "%s does not stop", p.name) })
}

// crash ends p without a word.
func (s *sim) crash(p *proc) {
	s.stats.Crashes++
	p.crashed = true
	s.remove(p)
	s.after(s.upTo(2*time.Second), func() { s.startProc(false) })
}

func (s *sim) remove(p *proc) {
	if p.watches {
		p.watches = false
		s.after(0, s.ring) // a connection that is lost tells the others by the next one that connects
	}
	s.procs = slices.DeleteFunc(s.procs, func(o *proc) bool { return o == p })
}

// thaw lets p go on.
func (s *sim) thaw(p *proc) {
	if !p.frozen {
		return
	}
	p.frozen = false
	held := p.held
	p.held = nil
	for _, e := range held {
		p.tell(e)
	}
}
