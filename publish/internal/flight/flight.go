// Package flight does the bookkeeping of a publisher whose client sends without waiting for the broker. It does what
// publish.Each does, in one goroutine per call and without one for each event.
package flight

import (
	"context"
	"fmt"
	"sync"

	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/internal/away"
)

// Sender sends the events of one call of Publish. Its methods are called one at a time.
type Sender interface {
	// Begin hands event i to the client, and returns without waiting for the broker. The result of the event goes to Finish
	// of the call, now or later and once: to Add and Wake, or to Later.
	Begin(c *Call, i int)
	// Flush sends what Begin has gathered, if it gathers. It is called before anything is waited for.
	Flush(c *Call)
	// Lost returns the result of an event about which nothing is known when cause ends the call. Its real result is ignored.
	Lost(i int, cause error) error
}

// Call is a call of Publish.
type Call struct {
	events []publish.Outgoing
	errs   []error
	next   []int32 // the position of the next event with the same key, by position; 0 means none
	heads  []int32 // the first event of each key, and those without a key, in order
	ready  []int32 // events whose predecessor has arrived
	flying []bool  // by position
	count  int     // of flying
	away   away.Destinations
	later  sync.WaitGroup

	mu       sync.Mutex
	finished []result
	over     bool
	wake     chan struct{} // has an element when finished has
}

type result struct {
	i   int32
	err error
}

// Send sends events with s, and returns the result that Publish must return. Those with one key are sent one after
// another, and those with different keys concurrently, up to so many at a time. The rules about failures are those of
// publish.Each. When closing ends, what is not finished gets the result Lost. So it does when ctx ends, and events that
// were not begun are outbox.ErrNotSent.
func Send(ctx, closing context.Context, events []publish.Outgoing, concurrency int, s Sender) []error {
	c := newCall(events)
	defer c.end()
	for over := false; !over; { // again, if Begin has ended its goroutine
		var running sync.WaitGroup
		running.Go(func() { over = c.run(ctx, closing, max(concurrency, 1), s) })
		running.Wait()
	}
	return c.errs
}

// run sends until each event has its result. It returns true.
func (c *Call) run(ctx, closing context.Context, concurrency int, s Sender) bool {
	for {
		for c.count < concurrency {
			i, ok := c.take(ctx)
			if !ok {
				break
			}
			c.begin(s, i)
		}
		s.Flush(c)
		if c.count == 0 {
			return true
		}
		select {
		case <-c.wake:
			c.settleFinished()
			continue
		case <-ctx.Done():
		case <-closing.Done():
		}
		c.settleFinished()
		cause := context.Cause(ctx)
		if closing.Err() != nil {
			cause = context.Cause(closing)
		}
		for i, is := range c.flying {
			if is {
				c.settle(i, s.Lost(i, cause))
			}
		}
	}
}

// begin begins event i. A panic and runtime.Goexit of Begin, which calls the encoder of a user, are a failed attempt.
func (c *Call) begin(s Sender, i int) {
	c.flying[i] = true
	c.count++
	usercode.Run("send event: the publisher", func() error {
		s.Begin(c, i)
		return nil
	}, func(crashed error) {
		if crashed != nil {
			c.Finish(i, usercode.Private(crashed))
		}
	})
}

func newCall(events []publish.Outgoing) *Call {
	n := len(events)
	c := &Call{
		events: events, errs: make([]error, n), next: make([]int32, n), heads: make([]int32, 0, n), flying: make([]bool, n),
		wake: make(chan struct{}, 1),
	}
	last := make(map[string]int32, n)
	for i := range events {
		at, key := int32(i), events[i].Key
		if key == "" {
			c.heads = append(c.heads, at)
			continue
		}
		if before, known := last[key]; known {
			c.next[before] = at
		} else {
			c.heads = append(c.heads, at)
		}
		last[key] = at
	}
	return c
}

// end lets further results be ignored, and waits for what Later has started.
func (c *Call) end() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.later.Wait()
}

// take returns the next event that may be sent. Events that may not get their results.
func (c *Call) take(ctx context.Context) (int, bool) {
	for {
		var i int
		switch {
		case len(c.ready) > 0:
			i, c.ready = int(c.ready[len(c.ready)-1]), c.ready[:len(c.ready)-1]
		case len(c.heads) > 0:
			i, c.heads = int(c.heads[0]), c.heads[1:]
		default:
			return 0, false
		}
		switch err := c.away.Err(c.events[i].Destination); {
		case ctx.Err() != nil:
			c.result(i, fmt.Errorf("send event: %w: %w", outbox.ErrNotSent, context.Cause(ctx)))
		case err != nil:
			c.result(i, err)
		default:
			return i, true
		}
	}
}

// settleFinished records the results that have come.
func (c *Call) settleFinished() {
	c.mu.Lock()
	finished := c.finished
	c.finished = nil
	c.mu.Unlock()
	for _, r := range finished {
		c.settle(int(r.i), r.err)
	}
}

// settle records the result of an event that was begun, and what it means for others.
func (c *Call) settle(i int, err error) {
	if !c.flying[i] {
		return // it had one
	}
	c.flying[i] = false
	c.count--
	c.result(i, err)
	c.away.Note(c.events[i].Destination, err)
	if err == nil && c.next[i] > 0 {
		c.ready = append(c.ready, c.next[i])
	}
}

// result records the result of an event. If that is an error, those behind it with its key are not sent.
func (c *Call) result(i int, err error) {
	if c.errs[i] = err; err != nil {
		for at := c.next[i]; at > 0; at = c.next[at] {
			c.errs[at] = outbox.ErrBehind
		}
	}
}

// Add adds the result of event i. Wake must be called soon afterwards. Both may be called from any goroutine.
func (c *Call) Add(i int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.finished = append(c.finished, result{int32(i), err})
	}
}

// Wake makes the call continue with the results that were added.
func (c *Call) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Finish is Add and Wake.
func (c *Call) Finish(i int, err error) {
	c.Add(i, err)
	c.Wake()
}

// Later runs find in a separate goroutine, and adds its result, which takes a round trip to find. Send waits for it. Later may be
// called from any goroutine.
func (c *Call) Later(i int, find func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.later.Go(func() { c.Finish(i, find()) })
}
