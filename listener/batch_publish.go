package listener

import (
	"context"
	"encoding/json"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// publish sends the events of the batch instead of the workers. Those of one destination are sent in order, many per
// call. The destinations are served concurrently.
func (b *batch) publish() {
	defer b.end()
	b.lock()
	parts := b.core.Sendings(errclass.Of(outbox.Permanent(outbox.ErrUnimplemented)))
	b.mu.Unlock()
	all := make([]*sending, len(parts))
	for i, part := range parts {
		all[i] = &sending{b: b, core: part, to: part.To.(*target.Target), done: make(chan struct{})}
	}
	if b.s.run.inline != nil {
		for _, s := range all {
			s.run(b.work, func() {})
		}
		return
	}
	for _, s := range all {
		s.start()
	}
	for _, s := range all {
		s.wait()
	}
}

// sending is what a batch sends to one destination.
type sending struct {
	b    *batch
	core *core.Sending // the mutex of b guards it
	to   *target.Target
	done chan struct{} // closed when all is sent
	keep func() bool   // detaches the call from the end of the lease
}

// start sends in a separate goroutine. A call may outlive the lease, but not Run.
func (s *sending) start() {
	run, work := s.b.s.run, s.b.work
	ctx, cancel := context.WithCancelCause(run.WorkCtx)
	s.keep = context.AfterFunc(work, func() { cancel(context.Cause(work)) })
	run.calls.Add(1)
	go s.run(ctx, func() {
		cancel(nil)
		s.keep()
		run.calls.Done()
	})
}

// wait waits until all is sent. The lease does not wait for a call that takes long, so that events of other
// destinations do not wait either. The events of that call are parked, and settled when they are read again. The same
// applies, after a shorter time, to a destination that rests already.
func (s *sending) wait() {
	if s.b.s.run.drained != nil || len(s.b.s.l.targets.All) == 1 {
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

// leaveBehind lets the call under way outlive the lease if it has stalled, and reports whether it did.
func (s *sending) leaveBehind() bool {
	now := time.Now()
	s.b.lock()
	defer s.b.mu.Unlock()
	if !s.core.Stalled(now, target.StallAfter) || !s.keep() {
		return false
	}
	s.core.LeaveBehind(now)
	return true
}

// run sends until no event is left that may be sent.
func (s *sending) run(ctx context.Context, done func()) {
	defer done()
	defer close(s.done)
	ctx = publish.ContextWithLane(ctx, s.b.lane)
	for {
		entries := s.next()
		if len(entries) == 0 {
			return
		}
		made, results := target.Prepare(ctx, len(entries), func(i int) (*target.Route, *outbox.Event, json.RawMessage) {
			e := entries[i]
			return s.b.s.l.of(e).publication, &e.Event, e.Payload
		})
		sent, events := s.encoded(entries, made, results)
		if len(sent) > 0 {
			sent = s.maySend(sent)
		}
		if len(sent) == 0 {
			now := time.Now()
			s.to.OnResults(now, now, nil, nil) // nothing was tried
			continue
		}
		if s.sent(sent, s.to.Send(ctx, events[:len(sent)])) {
			if s.b.s.run.callsReturned != nil {
				s.b.s.run.callReturned(s.to)
			}
			return
		}
	}
}

// next returns the next events that may be sent.
func (s *sending) next() []*core.Entry {
	now := time.Now()
	s.b.lock()
	defer s.b.mu.Unlock()
	return s.core.Next(now, target.BatchSize)
}

// encoded settles the entries that cannot be published, and returns the others with what the publisher gets.
func (s *sending) encoded(
	entries []*core.Entry, made []publish.Outgoing, results []errclass.Result,
) ([]*core.Entry, []publish.Outgoing) {
	now := time.Now()
	s.b.lock()
	defer s.b.mu.Unlock()
	sent, places := s.core.Encoded(now, entries, results)
	for at, place := range places {
		made[at] = made[place]
	}
	return sent, made[:len(sent)]
}

// sent records the results of a call, and reports whether the call has outlived the lease.
func (s *sending) sent(entries []*core.Entry, results []errclass.Result) (late bool) {
	now := time.Now()
	s.b.lock()
	defer s.b.mu.Unlock()
	late, keep := s.core.Sent(now, entries, results)
	if keep {
		s.to.KeepLateResults(core.IDs(entries), results)
	}
	return late
}
