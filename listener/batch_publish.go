package listener

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// publish sends the events of the batch instead of the workers. Those of one destination are sent in order, many per
// call. The destinations are served concurrently.
func (b *batch) publish(work context.Context) {
	defer b.workers.Done()
	var all []*sending
	byTarget := make(map[*target.Target]*sending)
	newer := make(map[string]bool) // keys with an event of an unknown version, behind which none is sent
	b.mu.Lock()
	for _, e := range b.entries {
		to := b.l.target(e)
		switch {
		case e.newer:
			newer[e.key] = true
		case newer[e.key]:
		case to != nil && to.Publisher != nil && byTarget[to] == nil:
			byTarget[to] = &sending{b: b, to: to, done: make(chan struct{})}
			all = append(all, byTarget[to])
			fallthrough
		case to != nil && to.Publisher != nil:
			byTarget[to].queue = append(byTarget[to].queue, e)
		case e.status == statusWaiting: // it was parked when the listener still read its topic
			e.started = true
			b.l.decide(e, errclass.Of(outbox.Permanent(outbox.ErrUnimplemented)))
		}
	}
	b.entries = nil
	b.mu.Unlock()
	if config.IsInline(b.ctx) {
		for _, s := range all {
			s.run(work, func() {})
		}
		return
	}
	for _, s := range all {
		s.start(work)
	}
	for _, s := range all {
		s.wait()
	}
}

// sending is what a batch sends to one destination.
type sending struct {
	b         *batch
	to        *target.Target
	queue     []*entry      // not sent yet; b.mu guards this and the fields below
	calls     []*entry      // of the call under way
	since     time.Time     // when that call began
	abandoned bool          // the lease ends before that call returns
	done      chan struct{} // closed when all is sent
	keep      func() bool   // detaches the call from the end of the lease
}

// start sends in a separate goroutine. A call may outlive the lease, but not Run.
func (s *sending) start(work context.Context) {
	ctx, cancel := work, context.CancelCauseFunc(func(error) {})
	if s.b.of != nil {
		ctx, cancel = context.WithCancelCause(s.b.of.WorkCtx)
		s.keep = context.AfterFunc(work, func() { cancel(context.Cause(work)) })
		s.b.of.calls.Add(1)
	}
	go s.run(ctx, func() {
		cancel(nil)
		if s.b.of != nil {
			s.keep()
			s.b.of.calls.Done()
		}
	})
}

// wait waits until all is sent. The lease does not wait for a call that takes long, so that events of other
// destinations do not wait either. The events of that call are parked, and settled when they are read again. The same
// applies, after a shorter time, to a destination that rests already.
func (s *sending) wait() {
	if s.b.of == nil || s.b.of.drained != nil || len(s.b.l.targets.All) == 1 {
		<-s.done
		return
	}
	limit := target.StallAfter
	if s.to.Resting() {
		limit = target.StallAfter / 20
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-timer.C:
		}
		if s.leaveBehind() {
			return
		}
		timer.Reset(target.StallAfter / 20)
	}
}

// leaveBehind lets the call under way outlive the lease if it has stalled and its events can be parked, and reports
// whether it did.
func (s *sending) leaveBehind() bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if time.Since(s.since) < target.StallAfter && !s.to.Resting() || len(s.calls) == 0 || !s.b.lease.mayParkAway || s.b.leaseLost || s.b.halted || !s.keep() {
		return false
	}
	s.abandoned = true
	s.to.Abandon()
	why := s.to.Why().Text
	for _, e := range slices.Concat(s.calls, s.queue) {
		if e.status == statusWaiting && (e.running || s.b.mayStart(e)) {
			s.b.wait(e, why, false)
		}
	}
	return true
}

// run sends until no event is left that may be sent.
func (s *sending) run(ctx context.Context, done func()) {
	defer done()
	defer close(s.done)
	ctx = publish.ContextWithLane(ctx, s.b.lane)
	for {
		entries := s.sendable()
		if len(entries) == 0 {
			return
		}
		made, results := target.Prepare(len(entries), func(i int) (*target.Route, *outbox.Event, json.RawMessage) {
			e := entries[i]
			return s.b.l.of(e).publication, &e.Event, e.payload
		})
		sent, events := s.encoded(entries, made, results)
		if len(events) == 0 {
			s.to.OnResults(time.Now(), nil, nil) // nothing was tried
			continue
		}
		if s.sent(sent, s.to.Send(ctx, events)) {
			if s.b.of != nil && s.b.of.callsReturned != nil {
				s.b.of.callReturned(s.to)
			}
			return
		}
	}
}

// sendable returns the next events that may be sent. They may include several of one key, because a publisher sends
// none after one that failed.
func (s *sending) sendable() (entries []*entry) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.halted && b.ctx.Err() == nil {
		for entries = nil; len(s.queue) > 0 && len(entries) < b.limit.atMost(target.BatchSize); s.queue = s.queue[1:] {
			e := s.queue[0]
			if e.status != statusWaiting || !b.mayStart(e) {
				continue
			}
			if r, is := s.to.TakeLateResult(e.ID); is {
				e.started = true
				b.settle(e, r, false)
				continue
			}
			entries = append(entries, e)
		}
		if len(entries) == 0 {
			return nil
		}
		n, why := s.to.Admit(len(entries))
		if n > 0 {
			b.limit.take(n)
			for _, e := range entries[:n] {
				e.retry, e.started, e.running = nil, true, true
			}
			s.queue = slices.Concat(entries[n:], s.queue)
			return entries[:n]
		}
		for _, e := range entries {
			if b.mayStart(e) {
				b.wait(e, why.Text, false)
			}
		}
	}
	return nil
}

// mayStart reports whether no event of e's key is before e. If one is, e waits. The caller holds b.mu.
func (b *batch) mayStart(e *entry) bool {
	var k keyState
	if known := b.keys[e.key]; known != nil {
		k = *known
	}
	switch {
	case k.parked && e.parkedNo == 0:
		e.status = statusParked
		return false
	case b.mustWait(e):
		b.stateOf(e.key).stopped = true
		return false
	}
	return !k.stopped
}

// encoded settles the entries that cannot be published, and returns the others with what the publisher gets.
func (s *sending) encoded(entries []*entry, made []publish.Outgoing, results []errclass.Result) (sent []*entry, events []publish.Outgoing) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	sent = make([]*entry, 0, len(entries))
	for i, e := range entries {
		switch {
		case !b.mayStart(e):
			e.started, e.running = false, false
		case results[i].Class != errclass.ClassDone:
			b.settle(e, results[i], true)
		default:
			e.running = true
			sent = append(sent, e)
			if at := len(sent) - 1; at != i {
				made[at] = made[i]
			}
		}
	}
	s.calls, s.since = sent, time.Now()
	return sent, made[:len(sent)]
}

// sent records the results of a call, and reports whether the call has outlived the lease.
func (s *sending) sent(entries []*entry, results []errclass.Result) (left bool) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	s.calls = nil
	if s.abandoned {
		ids := make([]uuid.UUID, len(entries))
		for i, e := range entries {
			ids[i] = e.ID
		}
		s.to.KeepLateResults(ids, results)
		return true
	}
	if b.abandoned {
		return true // too late: the lease has ended
	}
	first := true
	for i, e := range entries {
		r := results[i]
		e.running = false
		if b.leaseLost && r.Class != errclass.ClassDone {
			continue
		}
		b.settle(e, r, first)
		first = first && r.Class != errclass.ClassUnavailable
	}
	return false
}

// stateOf returns the state of a key.
func (b *batch) stateOf(key string) *keyState {
	k := b.keys[key]
	if k == nil {
		k = &keyState{}
		b.keys[key] = k
	}
	return k
}
