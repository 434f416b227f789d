package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/testing/coretest"
)

// scene is one event in one state. The state is the one that before has brought the core to, and what matters of the
// case stands in the name of the event.
type scene struct {
	config func(*Config)
	before func(*play)
	event  string
	in     func(*play) Event
}

func drains(c *Config)        { c.Drain = true }
func transactional(c *Config) { c.Transactional = true }

func is(in Event) func(*play) Event { return func(*play) Event { return in } }

// scenes are the cases of the machine. What the core does in each stands in
// docs/inside/states.md.
var scenes = []scene{
	// Unknown and checking.
	{nil, func(*play) {}, "started", is(Started{})},
	{nil, func(p *play) { p.step(Stop{}) }, "started (stopping)", is(Started{})},
	{nil, (*play).checking, "checked", is(checked(nil))},
	{nil, (*play).checking, "checked (gone)", is(Checked{Gone: true})},
	{nil, (*play).checking, "checked (another number of shards)", is(checked(func(w *Wait) { w.Shards = 2 }))},
	{nil, func(p *play) { p.checking(); p.step(Stop{}) }, "checked (stopping)", is(checked(nil))},
	{nil, (*play).checking, "woken", is(Woken{})},
	{nil, (*play).checking, "stop", is(Stop{})},
	{nil, (*play).checking, "failed", is(Failed{Err: errTest})},
	{drains, (*play).checking, "failed (drain)", is(Failed{Err: errTest})},
	{nil, func(p *play) { p.checking(); p.step(Stop{}) }, "failed (stopping)", is(Failed{Err: errTest})},
	{nil, func(p *play) { keptSince(p, 100*time.Millisecond) }, "checked (ready, and left to another process for long)", is(checked(readyFor))},
	{nil, (*play).checking, "round trip done (not asked for)", is(RoundTripDone{})},

	// Taking.
	{nil, (*play).taking, "round trip done (a lease)", func(p *play) Event { return p.taken(nil, 1) }},
	{nil, (*play).taking, "round trip done (a lease with more to read)", func(p *play) Event { return p.taken(nil, 1, 2) }},
	{nil, (*play).taking, "round trip done (a lease, parked events are due)", func(p *play) Event { return p.taken(parkedDue) }},
	{nil, (*play).taking, "round trip done (a lease, one by one)", func(p *play) Event { return p.taken(oneByOne, 1) }},
	{nil, (*play).taking, "round trip done (a lease, one by one, parked events are due)", func(p *play) Event {
		return p.taken(func(l *Lease) { oneByOne(l); parkedDue(l) }, 1)
	}},
	{transactional, (*play).taking, "round trip done (a lease, transactional)", func(p *play) Event { return p.taken(nil, 1) }},
	{nil, (*play).taking, "round trip done (nothing)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { p.taking(); p.step(Woken{}) }, "round trip done (nothing, woken meanwhile)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { p.taking(); p.step(Stop{}) }, "round trip done (nothing, stopping)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { p.taking(); p.step(Stop{}) }, "round trip done (a lease, stopping)", func(p *play) Event { return p.taken(nil, 1) }},
	{nil, (*play).taking, "failed", is(Failed{Err: errTest})},
	{drains, (*play).taking, "failed (drain)", is(Failed{Err: errTest})},
	{nil, func(p *play) { p.taking(); p.step(Stop{}) }, "failed (database over)", is(Failed{Err: errTest, Final: true})},
	{drains, (*play).taking, "round trip done (nothing, drain)", func(p *play) Event { return p.nothing() }},
	{drains, func(p *play) { p.checking(); p.step(checked(resharding)) }, "round trip done (nothing, drain, resharding)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { p.checking(); p.step(checked(resharding)) }, "round trip done (nothing, resharding)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { p.checking(); p.step(checked(foreign)) }, "round trip done (nothing, another process has the shard)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) {
		p.checking()
		met := checked(foreign)
		met.NewerAt = p.now
		p.step(met)
	}, "round trip done (nothing, another process has the shard, an unknown version was met)", func(p *play) Event { return p.nothing() }},
	{nil, afterLease(foreign), "round trip done (nothing, the shard was just handed over)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { p.checking(); p.step(checked(func(w *Wait) { w.Paused = true })) }, "round trip done (nothing, paused)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { p.checking(); p.step(checked(dueIn(10 * time.Second))) }, "round trip done (nothing, due in 10 s)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) {
		p.checking()
		p.step(checked(func(w *Wait) { w.Blocked, w.In = true, 10*time.Second }))
	}, "round trip done (nothing, a retry is due in 10 s)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { p.checking(); p.step(checked(readyFor)) }, "round trip done (nothing, ready, and left to another process)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { p.checking(); p.step(checked(func(w *Wait) { readyFor(w); w.Paused = true })) }, "round trip done (nothing, ready, left to another process, paused)", func(p *play) Event { return p.nothing() }},
	{nil, slowCheck, "round trip done (nothing, after slow checks)", func(p *play) Event { return p.nothing() }},

	{nil, func(p *play) {
		stoppedAt(p)
		p.step(p.handled(nil))
		p.step(ProcessFound{})
		p.step(RoundTripDone{Ours: true})
		p.wait(time.Second / 2)
	}, "checked (left to others because of an unknown version)", is(checked(nil))},

	// Sleeping.
	{nil, idle, "woken", is(Woken{})},
	{nil, idle, "stop", is(Stop{})},
	{nil, idle, "tick (early)", is(Tick{})},
	{nil, func(p *play) { p.sleeping(dueIn(time.Second)); p.wait(2 * time.Second) }, "tick", is(Tick{})},
	{nil, idle, "give up", is(GiveUp{})},

	// Pausing.
	{nil, pausing, "tick (early)", is(Tick{})},
	{nil, func(p *play) { pausing(p); p.wait(time.Minute) }, "tick", is(Tick{})},
	{nil, pausing, "woken", is(Woken{})},
	{nil, pausing, "stop", is(Stop{})},
	{nil, func(p *play) { p.ending(1); p.step(Failed{Err: errTest}) }, "stop (a lease is not ended)", is(Stop{})},
	{nil, func(p *play) { p.ending(1); p.step(Failed{Err: errTest}) }, "database over (a lease is not ended)", is(DatabaseOver{})},
	{nil, func(p *play) { p.ending(1); p.step(Failed{Err: errTest}); p.wait(time.Minute) }, "tick (a lease is not ended)", is(Tick{})},

	// Filling.
	{fills, (*play).checking, "checked (batches wait to fill)", is(checked(nil))},
	{fills, (*play).checking, "checked (batches wait to fill, paused)", is(checked(func(w *Wait) { w.Paused = true }))},
	{fills, (*play).taking, "filled (a full batch)", is(Filled{Events: 4, Scanned: 9})},
	{fills, (*play).taking, "filled (nothing)", is(Filled{})},
	{fills, (*play).taking, "filled (something that need not wait)", is(Filled{Events: 1, Ready: true})},
	{fills, (*play).taking, "filled (too few)", is(Filled{Events: 3})},
	{fills, (*play).taking, "filled (too few, the first has waited)", is(Filled{Events: 3, Age: time.Minute})},
	{fills, func(p *play) { p.taking(); p.step(Stop{}) }, "filled (too few, stopping)", is(Filled{Events: 3})},
	{fills, (*play).taking, "failed", is(Failed{Err: errTest})},
	{fills, (*play).taking, "stop (it looks for events)", is(Stop{})},
	{fills, waiting(0), "stop", is(Stop{})},
	{fills, waiting(0), "woken", is(Woken{})},
	{fills, waiting(0), "tick (early)", is(Tick{})},
	{fills, waiting(time.Second), "tick", is(Tick{})},
	{fills, func(p *play) { waiting(time.Second)(p); p.step(Tick{}) }, "filled (still too few)", is(Filled{Events: 3})},
	{fills, func(p *play) { waiting(7500 * time.Millisecond)(p); p.step(Tick{}) }, "filled (still too few, nearly long enough)", is(Filled{Events: 3})},
	{fills, func(p *play) { waiting(8 * time.Second)(p); p.step(Tick{}) }, "filled (too few, for long enough)", is(Filled{Events: 3})},
	{fills, func(p *play) { p.taking(); p.step(Filled{Events: 4}); p.step(p.taken(nil, 1)) }, "handled (batches wait to fill)", func(p *play) Event { return p.handled(nil) }},
	{fills, func(p *play) {
		p.taking()
		p.step(Filled{Events: 4})
		p.step(p.taken(nil, 1))
		p.step(p.handled(nil))
	}, "round trip done (batches wait to fill)", is(RoundTripDone{Ours: true})},

	// Waiting for the rate.
	{nil, (*play).rated, "handled (the rate does not allow more)", (*play).notAllowed},
	{drains, (*play).rated, "handled (drain, the rate does not allow more)", (*play).notAllowed},
	{nil, rateUsed, "round trip done (the rate does not allow more)", is(RoundTripDone{Ours: true})},
	{drains, rateUsed, "round trip done (drain, the rate does not allow more)", is(RoundTripDone{Ours: true})},
	{nil, rateChecked, "checked (the rate does not allow more)", is(checked(nil))},
	{nil, rateChecked, "checked (the rate does not allow more, resharding)", is(checked(resharding))},
	{nil, func(p *play) { rateChecked(p); p.step(checked(nil)) }, "stop (the rate does not allow more)", is(Stop{})},
	{nil, func(p *play) { rateChecked(p); p.step(checked(nil)); p.wait(time.Second) }, "tick (the rate does not allow more)", is(Tick{})},
	{nil, func(p *play) {
		rateChecked(p)
		p.step(checked(nil))
		p.wait(time.Minute)
	}, "tick (the rate allows more)", is(Tick{})},

	// Handling.
	{gets4, func(p *play) { p.handling(oneByOne, 1) }, "tried (two events)", func(p *play) Event { return p.tried(2, 2) }},
	{gets4, func(p *play) { p.handling(oneByOne, 1) }, "tried (one event)", func(p *play) Event { return p.tried(1) }},
	{gets4, func(p *play) { p.handling(oneByOne, 1) }, "tried (no other is there)", func(p *play) Event { return p.tried(2) }},
	{gets4, func(p *play) { p.handling(oneByOne, 1) }, "tried (another process has the lease)", is(Tried{})},
	{gets4, func(p *play) { p.handling(oneByOne, 1) }, "failed (nothing is tried)", is(Failed{Err: errTest})},
	{nil, func(p *play) { p.handling(func(l *Lease) { parkedDue(l); oneByOne(l) }, 1) }, "parked events (one by one)", func(p *play) Event {
		return ParkedTaken{[]*Entry{p.parkedEvent(1)}}
	}},
	{nil, func(p *play) { p.handling(parkedDue, 1) }, "parked events", func(p *play) Event { return ParkedTaken{[]*Entry{p.parkedEvent(1)}} }},
	{nil, func(p *play) { p.handling(parkedDue, 1) }, "failed (before a handler is called)", is(Failed{Err: errTest})},
	{nil, func(p *play) { p.handling(oneByOne, 1) }, "charged", is(Charged{Ours: true})},
	{nil, func(p *play) { p.handling(oneByOne, 1) }, "charged (another process has the lease)", is(Charged{})},
	{nil, func(p *play) { p.handling(nil, 1) }, "handled", func(p *play) Event { return p.handled(nil) }},
	{nil, func(p *play) { p.handling(nil, 1) }, "handled (failed)", func(p *play) Event { return p.handled(failing) }},
	{nil, func(p *play) { p.handling(nil, 1); p.step(Stop{}) }, "handled (stopping)", func(p *play) Event { return p.handled(nil) }},
	{nil, func(p *play) { p.handling(nil, 1) }, "handled (an earlier batch)", is(Handled{})},
	{nil, func(p *play) { p.handling(nil, 1) }, "woken", is(Woken{})},
	{nil, func(p *play) { p.handling(nil, 1) }, "stop", is(Stop{})},
	{nil, func(p *play) { p.handling(nil, 1) }, "give up", is(GiveUp{})},
	{nil, givenUp(nil), "handled (handlers still run)", running},
	{transactional, givenUp(func(p *play) { p.step(Begun{}) }), "handled (handlers still run, transactional)", running},
	{nil, func(p *play) { p.handling(nil, 1, 2) }, "handled (the next batch is not read yet)", func(p *play) Event { return p.handled(nil) }},
	{nil, func(p *play) { p.handling(nil, 1, 2); p.step(p.handled(nil)); p.wait(time.Second) }, "tick (the next batch takes too long)", is(Tick{})},
	{nil, func(p *play) {
		p.handling(nil, 1, 2)
		p.step(p.handled(nil))
		p.wait(time.Second)
		p.step(Tick{})
	}, "prefetched (too late)", func(p *play) Event { return p.prefetched(3) }},
	{nil, readOn(0), "prefetched (the batch is handled)", func(p *play) Event { return p.prefetched(3) }},
	{nil, readOn(0), "prefetched (failed)", func(p *play) Event {
		in := p.prefetched()
		in.Next.Failed = true
		return in
	}},
	{nil, readOn(2), "prefetched (the lease is full)", func(p *play) Event { return p.prefetched(7, 8) }},
	{nil, func(p *play) { p.handling(nil, 1, 2) }, "prefetched (the batch is not handled)", func(p *play) Event { return p.prefetched(3) }},
	{nil, func(p *play) { p.handling(nil, 1); p.wait(10 * time.Second) }, "tick (a third of the lease is over)", is(Tick{})},
	{nil, func(p *play) { p.handling(nil, 1); p.wait(24 * time.Second) }, "tick (the lease is nearly over)", is(Tick{})},
	{nil, renewing, "renewed", func(p *play) Event { return Renewed{Lease: p.core.lease, Sent: p.now} }},
	{nil, renewing, "renewed (failed)", func(p *play) Event { return Renewed{Lease: p.core.lease, Failed: true} }},
	{nil, renewing, "renewed (lost)", func(p *play) Event { return Renewed{Lease: p.core.lease, Lost: true} }},
	{nil, renewing, "renewed (an earlier lease)", is(Renewed{Lost: true})},
	{nil, renewing, "handled (being renewed)", func(p *play) Event { return p.handled(nil) }},
	{nil, func(p *play) { renewing(p); p.step(p.handled(nil)) }, "renewed (the lease is to be ended)", func(p *play) Event {
		return Renewed{Lease: p.core.lease, Failed: true}
	}},
	{nil, func(p *play) { renewing(p); p.step(p.handled(nil)) }, "tick (the lease is to be ended)", is(Tick{})},
	{nil, stoppedAt, "handled (stopped at an unknown version)", func(p *play) Event { return p.handled(nil) }},
	{nil, func(p *play) { stoppedAt(p); p.step(p.handled(nil)) }, "process found", is(ProcessFound{uuid.NullUUID{UUID: another, Valid: true}})},
	{nil, func(p *play) { stoppedAt(p); p.step(p.handled(nil)) }, "process found (none)", is(ProcessFound{})},
	{nil, func(p *play) { newerParked(p); p.step(p.handled(nil)) }, "process found (none, the event is parked)", is(ProcessFound{})},
	{drains, newerParked, "handled (drain, a parked event has an unknown version)", func(p *play) Event { return p.handled(nil) }},

	// Handling in a transaction.
	{transactional, func(p *play) { p.handling(nil, 1) }, "begun", is(Begun{})},
	{transactional, func(p *play) { p.handling(nil, 1) }, "failed (no transaction)", is(Failed{Err: errTest})},
	{transactional, begun(1), "handled (transactional)", func(p *play) Event { return p.handled(nil) }},
	{transactional, begun(1), "handled (one event broke the transaction)", broken},
	{transactional, begun(1, 2), "handled (one of two events broke the transaction)", broken},
	{transactional, func(p *play) { begun(1)(p); p.step(Stop{}) }, "handled (the transaction is broken, stopping)", broken},
	{transactional, func(p *play) { begun(1)(p); p.step(Renewed{}); p.core.lost = true }, "handled (the lease is lost)", func(p *play) Event { return p.handled(nil) }},
	{transactional, committing(1), "committed", is(Committed{Ours: true})},
	{transactional, committing(1), "committed (the lease was lost)", is(Committed{})},
	{transactional, committing(1), "commit failed", is(CommitFailed{Err: errTest})},
	{transactional, committing(1), "commit failed (one event is at fault)", is(CommitFailed{Err: errTest, Alive: true, Result: failing(0)})},
	{transactional, committing(1, 2), "commit failed (one of two events is at fault)", is(CommitFailed{Err: errTest, Alive: true, Result: failing(0)})},
	{transactional, committing(1), "tick (committing)", is(Tick{})},
	{nil, func(p *play) { p.handling(nil, 1) }, "commit failed (not asked for)", is(CommitFailed{})},

	// Ending.
	{nil, func(p *play) { p.ending(1) }, "round trip done (nothing)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { p.ending(1) }, "round trip done (another lease)", func(p *play) Event { return p.taken(nil, 2) }},
	{nil, carried, "round trip done (a lease, the batch was read ahead)", func(p *play) Event { return p.taken(func(l *Lease) { l.LastSeq = 6 }) }},
	{nil, carried, "round trip done (a lease, not where the batch was read)", func(p *play) Event { return p.taken(func(l *Lease) { l.LastSeq = 3 }) }},
	{nil, func(p *play) { carried(p); p.step(p.taken(func(l *Lease) { l.LastSeq = 3 })) }, "read", is(Read{})},
	{nil, func(p *play) { carried(p); p.step(p.taken(func(l *Lease) { l.LastSeq = 3 })) }, "failed (first batch)", is(Failed{Err: errTest})},
	{nil, func(p *play) { p.ending(1) }, "round trip done (the lease was not ended)", func(p *play) Event { return RoundTripDone{Lease: &Lease{}} }},
	{nil, unmoved, "lease state (ended by an earlier try)", func(p *play) Event { return LeaseState{Known: true, ID: p.core.previousID, No: 8} }},
	{nil, unmoved, "lease state (the earlier try took the next one)", func(p *play) Event {
		return LeaseState{Known: true, ID: p.core.nextID, No: 9, Running: true}
	}},
	{nil, unmoved, "lease state (another lease)", is(LeaseState{Known: true, ID: another, No: 9, Running: true})},
	{nil, unmoved, "failed (lease state)", is(Failed{Err: errTest})},
	{nil, func(p *play) { p.ending(1) }, "failed", is(Failed{Err: errTest})},
	{drains, func(p *play) { p.ending(1) }, "failed (drain)", is(Failed{Err: errTest})},
	{nil, func(p *play) { p.ending(1); p.step(Stop{}) }, "failed (database over)", is(Failed{Err: errTest, Final: true})},
	{nil, func(p *play) { p.ending(1); p.step(Stop{}) }, "round trip done (nothing, stopping)", func(p *play) Event { return p.nothing() }},
	{nil, func(p *play) { stoppedAt(p); p.step(p.handled(nil)); p.step(ProcessFound{}) }, "round trip done (given up because of an unknown version)", is(RoundTripDone{Ours: true})},
	{drains, func(p *play) { stoppedAt(p); p.step(p.handled(nil)); p.step(ProcessFound{}) }, "round trip done (drain, given up because of an unknown version)", is(RoundTripDone{Ours: true})},
	{nil, reshaped, "round trip done (another number of shards)", is(RoundTripDone{Ours: true})},
	{nil, reshaped, "failed (another number of shards)", is(Failed{Err: errTest})},
	{nil, abandoned, "round trip done (handlers still run)", is(RoundTripDone{Ours: true})},
	{nil, func(p *play) { abandoned(p); p.step(RoundTripDone{}) }, "lease state (lost, handlers still run)", is(LeaseState{})},
	{nil, abandoned, "failed (handlers still run)", is(Failed{Err: errTest})},
	{nil, repeating, "round trip done (nothing, the lease asked for again is over)", func(p *play) Event { return p.nothing() }},

	// Changing the number of shards.
	{nil, func(p *play) { p.sleeping(resharding) }, "resharded", is(Resharded{})},
	{nil, func(p *play) { p.sleeping(resharding) }, "failed (change of shards)", is(Failed{Err: errTest})},
	{drains, func(p *play) { p.sleeping(resharding) }, "resharded (drain, a step)", is(Resharded{Stepped: true})},
	{drains, func(p *play) { p.sleeping(resharding) }, "failed (drain, change of shards)", is(Failed{Err: errTest})},
	{nil, gone, "registered", is(Registered{Shards: 2})},
	{nil, gone, "registered (detached)", is(Registered{})},
	{nil, func(p *play) { gone(p); p.step(Stop{}) }, "registered (stopping)", is(Registered{Shards: 2})},
	{nil, gone, "failed", is(Failed{Err: errTest})},
	{drains, gone, "failed (drain)", is(Failed{Err: errTest})},
	{nil, func(p *play) { gone(p); p.step(Failed{Err: errTest}); p.wait(time.Minute) }, "tick (the number of shards is not known)", is(Tick{})},

	// Over.
	{nil, func(p *play) { p.checking(); p.step(Stop{}); p.step(checked(nil)) }, "woken", is(Woken{})},
}

func gets4(c *Config) { c.Batch, c.Together = 4, 2 }
func fills(c *Config) { c.Batch, c.Together, c.Wait = 4, 2, 8*time.Second }

// rated handles a lease of two events.
func (p *play) rated() { p.handling(func(l *Lease) { l.BatchSize = 3 }, 1, 2) }

// notAllowed lets the rate allow one of them.
func (p *play) notAllowed() Event {
	b := p.core.batch
	b.Finish(p.now, b.Next(p.now), errclass.Result{})
	b.Limit(b.Next(p.now), p.now.Add(10*time.Second))
	return Handled{Batch: b}
}

// rateUsed ends the lease because the rate allows no more.
func rateUsed(p *play) {
	p.handling(nil, 1)
	b := p.core.batch
	b.Limit(b.Next(p.now), p.now.Add(10*time.Second))
	p.step(Handled{Batch: b})
}

func rateChecked(p *play) {
	rateUsed(p)
	p.step(RoundTripDone{Ours: true})
}

// waiting waits to fill a batch, for d already.
func waiting(d time.Duration) func(*play) {
	return func(p *play) {
		p.taking()
		p.step(Filled{Events: 1})
		p.wait(d)
	}
}

// tried answers Try: so many events may be tried together, and those with seqs come behind the first one.
func (p *play) tried(size int, seqs ...int64) Tried {
	next := &NextBatch{Lease: latest[Try](p).Lease}
	for _, seq := range seqs {
		next.Add(p.event(seq))
		next.Scanned, next.ScannedTo = next.Scanned+1, seq
	}
	return Tried{Ours: true, Size: size, Next: next}
}

func parkedDue(l *Lease)                  { l.ParkedDue = true }
func oneByOne(l *Lease)                   { l.OneByOne = true }
func resharding(w *Wait)                  { w.Resharding = true }
func foreign(w *Wait)                     { w.ForeignLease = true }
func readyFor(w *Wait)                    { w.Kept, w.Ready = true, true }
func dueIn(d time.Duration) func(w *Wait) { return func(w *Wait) { w.In = d } }
func idle(p *play)                        { p.sleeping(nil) }
func renewing(p *play)                    { p.handling(nil, 1); p.wait(10 * time.Second); p.step(Tick{}) }
func pausing(p *play)                     { p.checking(); p.step(Failed{Err: errTest}) }
func gone(p *play)                        { p.checking(); p.step(Checked{Gone: true}) }
func unmoved(p *play)                     { p.ending(1); p.step(RoundTripDone{Lease: &Lease{}}) }
func repeating(p *play) {
	p.handling(oneByOne, 1)
	p.step(Failed{Err: errTest})
	p.wait(time.Minute)
	p.step(Tick{})
}
func begun(seqs ...int64) func(*play) {
	return func(p *play) { p.handling(nil, seqs...); p.step(Begun{}) }
}
func committing(seqs ...int64) func(*play) {
	return func(p *play) { begun(seqs...)(p); p.step(p.handled(nil)) }
}

// keptSince has seen for d that the shard is left to another process although there is something to do.
func keptSince(p *play, d time.Duration) {
	p.sleeping(readyFor)
	p.wait(d)
	p.step(Woken{})
}

// afterLease has ended a lease, and checked.
func afterLease(set func(*Wait)) func(*play) {
	return func(p *play) {
		p.ending(1)
		p.step(p.nothing())
		p.step(checked(set))
	}
}

// slowCheck has twice found nothing, slowly.
func slowCheck(p *play) {
	p.checking()
	p.step(checked(nil))
	p.wait(100 * time.Millisecond)
	p.step(p.nothing())
	p.step(Woken{})
	p.step(checked(nil))
	p.wait(100 * time.Millisecond)
}

// givenUp has started a handler that does not return, and waits no more for it.
func givenUp(after func(*play)) func(*play) {
	return func(p *play) {
		p.handling(nil, 1)
		if after != nil {
			after(p)
		}
		p.core.batch.Next(p.now)
		p.step(Stop{})
		p.step(GiveUp{})
		latest[Abandon](p).Batch.Abandon()
	}
}

func running(p *play) Event { return Handled{Batch: p.core.batch, Running: p.core.batch.Running()} }

func abandoned(p *play) {
	givenUp(nil)(p)
	p.step(running(p))
}

func broken(p *play) Event {
	h := p.handled(nil)
	h.TxErr, h.TxResult = errTest, failing(0)
	return h
}

// prefetched answers the latest Prefetch.
func (p *play) prefetched(seqs ...int64) Prefetched {
	ahead := latest[Prefetch](p).Next
	for _, seq := range seqs {
		ahead.Add(p.event(seq))
		ahead.Scanned, ahead.ScannedTo = ahead.Scanned+1, seq
	}
	return Prefetched{ahead}
}

// readOn has handled the first batch, and n more, which were read ahead.
func readOn(n int) func(*play) {
	return func(p *play) {
		p.handling(nil, 1, 2)
		for i := range int64(n) {
			p.step(p.prefetchedThen(3+2*i, 4+2*i))
		}
		p.step(p.handled(nil))
	}
}

// prefetchedThen lets the batch be handled, and then answers the latest Prefetch.
func (p *play) prefetchedThen(seqs ...int64) Prefetched {
	in := p.prefetched(seqs...)
	p.step(p.handled(nil))
	return in
}

// carried ends a lease that is full, whose next batch was read ahead, after the event 6.
func carried(p *play) {
	readOn(2)(p)
	p.step(p.prefetched(7, 8))
}

// stoppedAt handles a lease that stops at an event of an unknown version.
func stoppedAt(p *play) {
	p.handling(func(l *Lease) { l.Events[0].Version = 2 }, 1)
}

// newerParked handles a lease with a parked event of an unknown version.
func newerParked(p *play) {
	p.handling(parkedDue, 1)
	e := p.parkedEvent(1)
	e.Version = 2
	p.step(ParkedTaken{[]*Entry{e}})
}

// reshaped ends a lease that tells of another number of shards.
func reshaped(p *play) {
	p.handling(func(l *Lease) { l.Shards = 2 }, 1)
	p.step(p.handled(nil))
}

// TestStates plays every scene, and keeps docs/inside/states.md equal to what the core does.
func TestStates(t *testing.T) {
	t.Parallel()
	byState := make([][]coretest.Row, len(stateNames))
	for _, s := range scenes {
		p := newPlay(t, s.config)
		s.before(p)
		state := p.core.State()
		row := coretest.Row{State: state.String(), Event: s.event}
		p.step(s.in(p))
		row.Commands, row.Next = describe(p.now, p.last), p.core.State().String()
		if err := p.core.Err(); err != nil {
			row.Next = fmt.Sprintf("%s with an error", row.Next)
		}
		byState[state] = append(byState[state], row)
	}
	coretest.RequireStates(t, "listener", slices.Concat(byState...))
}
