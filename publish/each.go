package publish

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/outboxgen/outboxgen/outbox"
)

// errNoReturn is the result of a send that ended its goroutine.
var errNoReturn = errors.New("send event: the publisher called runtime.Goexit")

// Each does the bookkeeping of a Publisher whose broker takes one event at a time. It calls send for the events: one after
// another for those with one key, and concurrently for different keys, up to concurrency calls at a time (at least one). It
// waits for all calls and returns the result that Publish must return:
//   - After an event has failed, those behind it with its key are not sent: outbox.ErrBehind.
//   - After send has returned outbox.Unavailable for an event, this call sends no more events to its destination. They get
//     the same error. After outbox.BrokerUnavailable that holds for every destination.
//   - After ctx has ended, send is not called again: outbox.ErrNotSent. send itself must return soon after ctx has ended,
//     with outbox.ErrNotSent only if it has handed nothing of the event to the broker.
//   - A panic of send is a failed attempt.
func Each(
	ctx context.Context, events []Outgoing, concurrency int, send func(context.Context, Outgoing) error,
) []error {
	r := &round{ctx: ctx, events: events, send: send, errs: make([]error, len(events)), down: make(map[string]error)}
	for i := range r.errs {
		r.errs[i] = errNoReturn
	}
	chains := chainsOf(events)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(max(concurrency, 1), len(chains)) {
		workers.Go(func() {
			for i := next.Add(1); i <= int64(len(chains)); i = next.Add(1) {
				r.run(chains[i-1])
			}
		})
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

	mu     sync.Mutex
	broker error            // why no more events are sent
	down   map[string]error // by destination: why no more events are sent there
}

func (r *round) run(chain []int) {
	for n, i := range chain {
		r.errs[i] = r.one(r.events[i])
		if r.errs[i] == nil {
			continue
		}
		for _, behind := range chain[n+1:] {
			r.errs[behind] = outbox.ErrBehind
		}
		return
	}
}

func (r *round) one(o Outgoing) (err error) {
	if r.ctx.Err() != nil {
		return fmt.Errorf("send event: %w: %w", outbox.ErrNotSent, context.Cause(r.ctx))
	}
	if err := r.unavailable(o.Destination); err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("send event: the publisher panicked (%T)\n%s", p, debug.Stack()) // without the value, which may hold the payload
		}
		r.note(o.Destination, err)
	}()
	return r.send(r.ctx, o)
}

// unavailable returns why nothing may be sent to a destination, or nil.
func (r *round) unavailable(destination string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broker != nil {
		return r.broker
	}
	return r.down[destination]
}

// note remembers what the result of an event means for other events.
func (r *round) note(destination string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case outbox.IsBrokerUnavailable(err):
		r.broker = err
	case outbox.IsUnavailable(err):
		r.down[destination] = err
	}
}
