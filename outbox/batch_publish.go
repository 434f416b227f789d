package outbox

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/inline"
)

// publish sends the events of the batch in place of the workers: those of one destination in their order, many at a
// time, and the destinations at the same time.
func (b *batch) publish(work context.Context) {
	defer b.workers.Done()
	queues := make(map[*target][]*entry)
	b.mu.Lock()
	for _, e := range b.entries {
		if to := b.l.target(e); to != nil && to.publisher != nil {
			queues[to] = append(queues[to], e)
		} else if e.fate == waiting { // parked when the listener still read its topic
			e.started = true
			b.l.judge(e, resultOf(Permanent(ErrUnimplemented)))
		}
	}
	b.entries = nil
	b.mu.Unlock()
	var sending sync.WaitGroup
	defer sending.Wait()
	for to, queue := range queues {
		if send := func() { b.publishTo(work, to, queue) }; inline.Marked(b.ctx) {
			send()
		} else {
			sending.Go(send)
		}
	}
}

// publishTo sends the events of queue to one destination.
func (b *batch) publishTo(work context.Context, to *target, queue []*entry) {
	for {
		var entries []*entry
		entries, queue = b.sendable(to, queue)
		if len(entries) == 0 {
			return
		}
		made, results := outgoing(len(entries), func(i int) (*publication, Event, json.RawMessage) {
			e := entries[i]
			return b.l.handlers[e.Namespace+"/"+e.Topic].publication, e.Event, e.payload
		})
		entries, events := b.encoded(entries, made, results)
		if len(events) == 0 {
			to.heed(time.Now(), nil, nil) // nothing was tried
			continue
		}
		b.sent(entries, to.send(work, events))
	}
}

// sendable returns the next events of queue that may be sent, and the rest. Several of one key may be among them, since
// a publisher sends none behind one that failed.
func (b *batch) sendable(to *target, queue []*entry) (entries, rest []*entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.halted && b.ctx.Err() == nil {
		for entries = nil; len(queue) > 0 && len(entries) < publishBatch; queue = queue[1:] {
			if e := queue[0]; e.fate == waiting && b.free(e) {
				entries = append(entries, e)
			}
		}
		if len(entries) == 0 {
			return nil, nil
		}
		if n := to.admit(len(entries)); n > 0 {
			for _, e := range entries[:n] {
				e.started = true
			}
			return entries[:n], slices.Concat(entries[n:], queue)
		}
		why := to.why().text
		for _, e := range entries {
			if b.free(e) {
				b.wait(e, why, false)
			}
		}
	}
	return nil, nil
}

// free tells whether nothing of e's key is in front of e, and has e wait otherwise. b.mu is held.
func (b *batch) free(e *entry) bool {
	k := b.lane(e.key)
	switch {
	case k.parked && e.no == 0:
		e.fate = aside
		return false
	case e.held != nil:
		k.stopped = true
	}
	return !k.stopped
}

// encoded settles those of entries that cannot be published, and returns the others with what the publisher gets.
func (b *batch) encoded(entries []*entry, made []Outgoing, results []result) (sent []*entry, events []Outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, e := range entries {
		switch {
		case !b.free(e):
			e.started = false
		case results[i].class != classDone:
			b.settle(e, results[i], true)
		default:
			e.running = true
			sent, events = append(sent, e), append(events, made[i])
		}
	}
	return sent, events
}

// sent takes the results of a publisher.
func (b *batch) sent(entries []*entry, results []result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left {
		return // the account is closed
	}
	first := true
	for i, e := range entries {
		e.running = false
		r := results[i]
		if b.lost && r.class != classDone {
			continue
		}
		b.settle(e, r, first)
		first = first && r.class != classUnavailable
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
