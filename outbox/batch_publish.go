package outbox

import (
	"context"
	"errors"
	"time"
)

// publish sends the events of the batch in place of the workers, in their order, many at a time.
func (b *batch) publish(work context.Context) {
	defer b.workers.Done()
	for {
		entries, events := b.sendable()
		if len(entries) == 0 {
			return
		}
		if len(events) > 0 {
			b.sent(entries, b.l.target.send(work, b.l.log, events))
		}
	}
}

// sendable returns the next events that may be sent. Several of one key may be among them, since a publisher sends
// none behind one that failed.
func (b *batch) sendable() (entries []*entry, events []Outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.entries) > 0 && len(entries) < publishBatch && !b.halted && b.ctx.Err() == nil {
		e := b.entries[0]
		b.entries = b.entries[1:]
		if e.fate != waiting {
			continue
		}
		k := b.lane(e.key)
		switch {
		case k.parked && e.no == 0:
			e.fate = aside
			continue
		case e.held != nil:
			k.stopped = true
		}
		if k.stopped {
			continue
		}
		e.started = true
		h := b.l.handlers[e.Namespace+"/"+e.Topic]
		if h.publication == nil { // set aside when the listener still read its topic
			b.l.judge(e, Permanent(ErrUnimplemented))
			continue
		}
		o, err := h.publication.outgoing(e.Event, e.payload)
		if err != nil {
			b.failed(e, err)
			continue
		}
		e.running = true
		entries, events = append(entries, e), append(events, o)
	}
	return entries, events
}

// sent takes the results of a publisher.
func (b *batch) sent(entries []*entry, errs []error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left {
		return // the account is closed
	}
	pause := b.l.target.pause()
	for i, e := range entries {
		e.running = false
		k := b.lane(e.key)
		switch err := errs[i]; {
		case b.lost && err != nil:
		case IsUnavailable(err):
			e.started, k.stopped = false, true
			e.held = &hold{until: time.Now().Add(pause), text: errorText(err)}
			b.halted = true
		case errors.Is(err, ErrBehind):
			e.started = false
			if k.parked && e.no == 0 {
				e.fate = aside
			}
		default:
			b.failed(e, err)
		}
	}
}

// failed judges e, and stops its key if it is to be tried again.
func (b *batch) failed(e *entry, err error) {
	if b.l.judge(e, err); e.fate != failed {
		return
	}
	k := b.lane(e.key)
	k.stopped = true
	if e.no == 0 && b.l.spec.ParkKeys && b.t.parkedRoom {
		e.fate, k.parked = aside, true
	}
}

// lane returns the state of a key.
func (b *batch) lane(key string) *lane {
	k := b.lanes[key]
	if k == nil {
		k = &lane{}
		b.lanes[key] = k
	}
	return k
}
