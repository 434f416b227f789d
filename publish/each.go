package publish

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish/internal/away"
)

// Each does the bookkeeping of a Publisher whose broker takes one event at a time. It calls send for the events: one
// after another for those with one key, and concurrently for different keys, up to concurrency calls at a time (at
// least one). It waits for all calls and returns the result that Publish must return:
//   - After an event has failed, those behind it with its key are not sent: outbox.ErrBehind.
//   - After send has returned outbox.Unavailable for an event, this call sends no more events to its destination. They
//     get the same error. After outbox.BrokerUnavailable that holds for every destination.
//   - After ctx has ended, send is not called again: outbox.ErrNotSent. send itself must return soon after ctx has
//     ended, with outbox.ErrNotSent only if it has handed nothing of the event to the broker.
//   - A panic and runtime.Goexit of send are a failed attempt.
func Each(
	ctx context.Context, events []Outgoing, concurrency int, send func(context.Context, Outgoing) error,
) []error {
	r := &round{ctx: ctx, events: events, send: send, errs: make([]error, len(events))}
	chains := chainsOf(events)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(max(concurrency, 1), len(chains)) {
		workers.Go(func() { r.work(chains, &next, &workers) })
	}
	workers.Wait()
	return r.errs
}

// chainsOf returns the positions of the events, grouped by key and in order.
func chainsOf(events []Outgoing) [][]int {
	chains := make([][]int, 0, len(events))
	byKey := make(map[string]int)
	for i, o := range events {
		at, known := byKey[o.Key]
		switch {
		case o.Key == "":
			chains = append(chains, []int{i})
		case known:
			chains[at] = append(chains[at], i)
		default:
			byKey[o.Key] = len(chains)
			chains = append(chains, []int{i})
		}
	}
	return chains
}

// round is one call of Each.
type round struct {
	ctx    context.Context
	events []Outgoing
	send   func(context.Context, Outgoing) error
	errs   []error

	mu   sync.Mutex
	away away.Destinations
}

// work sends the chains that no other worker has. If a send ends its goroutine, another worker continues.
func (r *round) work(chains [][]int, next *atomic.Int64, workers *sync.WaitGroup) {
	over := false
	defer func() {
		if !over {
			workers.Go(func() { r.work(chains, next, workers) })
		}
	}()
	for i := next.Add(1); i <= int64(len(chains)); i = next.Add(1) {
		r.run(chains[i-1])
	}
	over = true
}

func (r *round) run(chain []int) {
	for n, i := range chain {
		if r.one(i, chain[n+1:]); r.errs[i] != nil {
			return
		}
	}
}

// one sends event i. If that fails, those behind it with its key are not sent.
func (r *round) one(i int, behind []int) {
	o := r.events[i]
	settle := func(err error) {
		if r.errs[i] = err; err != nil {
			for _, j := range behind {
				r.errs[j] = outbox.ErrBehind
			}
		}
	}
	if r.ctx.Err() != nil {
		settle(fmt.Errorf("send event: %w: %w", outbox.ErrNotSent, context.Cause(r.ctx)))
		return
	}
	if err := r.unavailable(o.Destination); err != nil {
		settle(err)
		return
	}
	usercode.Run("send event: the publisher", func() error { return r.send(r.ctx, o) }, func(err error) {
		err = usercode.Private(err)
		r.note(o.Destination, err)
		settle(err)
	})
}

// unavailable returns why nothing may be sent to a destination, or nil.
func (r *round) unavailable(destination string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.away.Err(destination)
}

// note remembers what the result of an event means for other events.
func (r *round) note(destination string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away.Note(destination, err)
}
