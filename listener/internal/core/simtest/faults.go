package simtest

import (
	"fmt"
	"time"

	"github.com/outboxgen/outboxgen/internal/testing/simulation"
)

// disturb makes what goes wrong in a moment.
func (w *world) disturb() {
	if !w.storm {
		return
	}
	for _, k := range []struct {
		simulation.Kind
		do func(simulation.Fault)
	}{
		{simulation.Kill, w.killOne},
		{simulation.Stop, w.stopOne},
		{simulation.Away, w.goAway},
		{simulation.Reshard, w.reshardLater},
		{simulation.Pause, w.freezeOne},
		{simulation.Restart, w.restart},
		{simulation.Down, w.goDown},
		{simulation.ClockStep, w.step},
		{simulation.Exhausted, w.exhaust},
		{simulation.LimitChange, func(simulation.Fault) { w.rated = !w.rated }},
	} {
		if f, is := w.faults.Draw(k.Kind); is {
			k.do(f)
		}
	}
	alive := 0
	for _, p := range w.procs {
		if !p.gone {
			alive++
		}
	}
	if len(w.procs) < 8 && (alive == 0 || w.IntN(3) == 0) {
		w.start(1 + w.IntN(2))
	}
	w.after(w.random(4*time.Second), w.disturb)
}

// one returns a process that f picks, or nil.
func (w *world) one(f simulation.Fault) *process {
	p := w.procs[f.Pick1(len(w.procs))]
	if p.gone {
		return nil
	}
	return p
}

func (w *world) killOne(f simulation.Fault) {
	if p := w.one(f); p != nil {
		w.kill(p)
	}
}

// kill ends p without a word.
func (w *world) kill(p *process) {
	w.note(p.name, "FAULT: is killed")
	p.gone, w.excused = true, true
	if !w.storm {
		w.after(100*time.Millisecond, func() { w.start(2) })
	}
}

func (w *world) stopOne(f simulation.Fault) {
	if p := w.one(f); p != nil {
		w.note(p.name, "FAULT: is told to stop")
		w.excused = true // handlers that do not end are given up
		p.thaw()
		p.stop()
	}
}

func (w *world) goAway(f simulation.Fault) {
	w.away[f.Pick1(2)] = w.now.Add(f.UpTo(2 * time.Second))
	w.note(fmt.Sprint("target ", f.Pick1(2)), "FAULT: is away for "+f.UpTo(2*time.Second).String())
}

func (w *world) reshardLater(f simulation.Fault) {
	if w.reshardTo == 0 {
		w.reshardTo = 1 + f.Pick1(3)
		w.note("operator", fmt.Sprint("FAULT: wants shards: ", w.reshardTo))
	}
}

// freezeOne keeps a process from doing anything for a while.
func (w *world) freezeOne(f simulation.Fault) {
	if p := w.one(f); p != nil && !p.frozen {
		p.frozen, w.excused = true, true
		w.note(p.name, "FAULT: stands still for "+f.UpTo(2*leaseDuration).String())
		w.after(f.UpTo(2*leaseDuration), p.thaw)
	}
}

// thaw lets p go on.
func (p *process) thaw() {
	if !p.frozen {
		return
	}
	p.frozen = false
	p.w.note(p.name, "goes on")
	held := p.held
	p.held = nil
	for _, do := range held {
		do()
	}
}

// restart restarts the server after a crash: open transactions are rolled back, what is not on disk, answers and doorbells are
// lost.
func (w *world) restart(f simulation.Fault) {
	w.epoch++
	w.excused, w.database = true, w.now.Add(f.UpTo(time.Second))
	w.note("database", "FAULT: restarts, "+f.UpTo(time.Second).String())
	for _, r := range w.open {
		r.rollsBack = true
	}
	w.loseUnflushed()
	for _, p := range w.procs {
		if p.asleep {
			p.asleep = false
			w.after(f.UpTo(time.Second), p.wakeAll)
		}
	}
}

func (w *world) goDown(f simulation.Fault) {
	w.excused, w.database = true, w.now.Add(f.UpTo(2*time.Second))
	w.note("database", "FAULT: does not answer for "+f.UpTo(2*time.Second).String())
}

// step steps the clock of the database.
func (w *world) step(f simulation.Fault) {
	d := f.UpTo(2 * leaseDuration)
	if f.Pick1(2) == 0 {
		d = -d
	}
	w.skew += d
	w.stepped, w.excused = true, true
	w.note("database", "FAULT: its clock jumps by "+d.String())
}

// exhaust takes all connections from a process for a while.
func (w *world) exhaust(f simulation.Fault) {
	if p := w.one(f); p != nil {
		w.excused, p.exhausted = true, w.now.Add(f.UpTo(2*leaseDuration))
		w.note(p.name, "FAULT: its pool is exhausted for "+f.UpTo(2*leaseDuration).String())
	}
}

// unreachable reports whether no statement of p can take effect.
func (p *process) unreachable() bool {
	return p.cut || p.w.now.Before(p.w.database) || p.w.now.Before(p.exhausted)
}

// calmDown ends all faults. From then on nothing polls, so a wake-up that is missing is found.
func (w *world) calmDown() {
	w.storm, w.faults.Calm, w.database = false, true, time.Time{}
	w.note("world", "nothing goes wrong any more")
	for _, r := range w.open {
		if !r.rollsBack {
			w.commitEvent(r, 0)
		}
	}
	w.away = [2]time.Time{}
	for _, p := range w.procs {
		p.exhausted = time.Time{}
		p.thaw()
	}
	if w.load.IntN(2) == 0 { // a process that is alone cannot be helped by another
		for _, p := range w.procs {
			if !p.gone {
				p.gone, w.excused = true, true
				w.note(p.name, "is killed")
			}
		}
	}
	w.start(2)
	w.ring()
	w.round(rounds)
}

// requireNothingLeft checks that all has ended, and that nobody has handled what does not exist.
func (w *world) requireNothingLeft() {
	w.requireNoTrace()
	for _, p := range w.procs {
		if !p.gone {
			w.fail("I11", "%s does not stop", p.name)
		}
	}
}
