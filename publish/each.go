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

// errNoReturn stands for the result of a send that ended its goroutine.
var errNoReturn = errors.New("send event: the publisher called runtime.Goexit")

// Each does the bookkeeping of a Publisher whose broker takes one event at a time. It calls send for the events, those
// with one key one after another and up to concurrency of them at once (at least one), waits for all of them, and
// returns what Publish is to return:
//   - When an event fails, those behind it with its key are not sent: outbox.ErrBehind.
//   - When one finds its destination unavailable, no other is sent there any more in this call: they are unavailable too.
//     Those of every destination are when it finds the broker unavailable.
//   - When ctx has ended, send is not called any more: outbox.ErrNotSent. It is for send to heed ctx, and to return
//     outbox.ErrNotSent only if it has handed nothing of the event to the broker.
//   - A send that panics has failed.
func Each(
	ctx context.Context, events []outbox.Outgoing, concurrency int, send func(context.Context, outbox.Outgoing) error,
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

// chainsOf returns the positions of the events, those with one key together and in order.
func chainsOf(events []outbox.Outgoing) [][]int {
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
	events []outbox.Outgoing
	send   func(context.Context, outbox.Outgoing) error
	errs   []error

	mu     sync.Mutex
	broker error            // why no event is sent any more
	down   map[string]error // why none is sent to a destination
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

func (r *round) one(o outbox.Outgoing) (err error) {
	if r.ctx.Err() != nil {
		return fmt.Errorf("send event: %w: %w", outbox.ErrNotSent, context.Cause(r.ctx))
	}
	if err := r.unavailable(o.Destination); err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("send event: the publisher panicked (%T)\n%s", p, debug.Stack()) // the value may hold the payload
		}
		r.note(o.Destination, err)
	}()
	return r.send(r.ctx, o)
}

// unavailable returns why nothing is to be sent to a destination.
func (r *round) unavailable(destination string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broker != nil {
		return r.broker
	}
	return r.down[destination]
}

// note remembers what the result of an event says about others.
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
