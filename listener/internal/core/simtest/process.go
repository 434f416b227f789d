package simtest

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/listener/internal/core"
)

// start starts a process that knows the payload versions up to version.
func (w *world) start(version int) {
	p := &process{w: w, id: w.newID(), name: fmt.Sprint("p", len(w.procs)+1)}
	w.note(p.name, fmt.Sprint("starts, knows version ", version))
	for i := range p.topics {
		p.targets[i] = &target{w: w, number: i, returned: true}
		p.topics[i] = &core.Topic{Version: version, Target: p.targets[i]}
	}
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
		cfg.Shard, cfg.Shards, cfg.Targets = i, shards, []core.Target{p.targets[0], p.targets[1]}
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
	p.w.note(p.name, "stops")
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
			s.step(core.DatabaseOver{})
		}
	})
	p.w.after(shutdown+3*time.Second+leaseDuration, func() {
		for _, s := range p.cores {
			if !p.gone && !s.core.Over() {
				p.w.fail("I11", "shard %d of a process that was told to stop is %v", s.number, s.core.State())
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
		p.requireReleased()
		p.w.flush()
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

// requireReleased checks that p, which has ended in order, has no lease. While things go wrong it may know of none.
func (p *process) requireReleased() {
	for i, c := range p.w.shards {
		if !p.w.storm && c.leaseBy == p.id && !c.leaseUntil.Before(p.w.db()) {
			p.w.fail("I11", "%s ends and has the lease of shard %d", p.name, i)
		}
	}
}
