// Package report tells what a dispatcher or listener does: to its Observer, and to its log as changes of state.
package report

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/outbox"
)

// hookLimit is how long a function of an observer may take before its caller continues without it.
const hookLimit = time.Second

// Hooks calls the functions of an Observer. Whatever they do, the caller continues after a second at most. While one
// hangs, the other calls are dropped. A nil Hooks calls nothing and costs nothing.
type Hooks struct {
	o       outbox.Observer
	runner  outbox.Runner
	log     *slog.Logger
	limit   time.Duration
	hanging atomic.Int32 // calls that have not returned within the limit

	mu         sync.Mutex
	complaints map[string]*complaint // by function
}

// complaint is what was said of a function that panics.
type complaint struct {
	said    time.Time
	dropped int // not said since
}

// NewHooks returns the hooks of o, nil if o is nil. log must be one of usercode.Logger.
func NewHooks(o *outbox.Observer, r outbox.Runner, log *slog.Logger) *Hooks {
	if o == nil {
		return nil
	}
	return &Hooks{o: *o, runner: r, log: log, limit: hookLimit, complaints: make(map[string]*complaint)}
}

// WantsClaimed reports whether Claimed tells anybody.
func (h *Hooks) WantsClaimed() bool { return h != nil && h.o.Claimed != nil }

// WantsCalls reports whether Started or Finished tells anybody.
func (h *Hooks) WantsCalls() bool { return h != nil && (h.o.Started != nil || h.o.Finished != nil) }

// WantsEnds reports whether an End tells anybody.
func (h *Hooks) WantsEnds() bool {
	return h != nil && (h.o.Settled != nil || h.o.Lost != nil || h.o.Dead != nil)
}

// Claimed tells of a claim.
func (h *Hooks) Claimed(events []outbox.Event, took time.Duration) {
	if h.WantsClaimed() {
		h.call("Claimed", 1, func(int) { h.o.Claimed(h.runner, events, took) })
	}
}

// Started tells that the handler or publisher of events is about to be called.
func (h *Hooks) Started(ctx context.Context, events []outbox.Event) {
	if h != nil && h.o.Started != nil {
		h.call("Started", 1, func(int) { h.o.Started(ctx, h.runner, events) })
	}
}

// Finished tells that the call has returned.
func (h *Hooks) Finished(ctx context.Context, events []outbox.Event, errs []error, took time.Duration) {
	if h != nil && h.o.Finished != nil {
		h.call("Finished", 1, func(int) { h.o.Finished(ctx, h.runner, events, errs, took) })
	}
}

// End is what has become of an event.
type End struct {
	Event  outbox.Event
	As     outbox.Settlement // "" if it was lost
	Reason string            // of a dead letter
	Swept  bool              // found dead by a sweep: only Dead is told
}

// Ended tells of the ends of events, in their order. The slice is not used by the caller any more.
func (h *Hooks) Ended(ends []End) {
	if !h.WantsEnds() {
		return
	}
	h.call("Settled, Lost or Dead", len(ends), func(i int) {
		e := &ends[i]
		if e.As == outbox.SettledDead && h.o.Dead != nil {
			defer h.o.Dead(h.runner, e.Event, reason(e.Reason))
		}
		switch {
		case e.Swept:
		case e.As == "" && h.o.Lost != nil:
			h.o.Lost(h.runner, e.Event)
		case e.As != "" && h.o.Settled != nil:
			h.o.Settled(h.runner, e.Event, e.As)
		}
	})
}

// reason is an error of which only the text is known.
type reason string

func (r reason) Error() string { return string(r) }

// Resting tells that target rests.
func (h *Hooks) Resting(target, cause string) {
	if h != nil && h.o.Resting != nil {
		h.call("Resting", 1, func(int) { h.o.Resting(h.runner, target, reason(cause)) })
	}
}

// Resumed tells that the rest of target is over.
func (h *Hooks) Resumed(target string, rested time.Duration) {
	if h != nil && h.o.Resumed != nil {
		h.call("Resumed", 1, func(int) { h.o.Resumed(h.runner, target, rested) })
	}
}

// call calls f for 0 to n-1 in a goroutine that it waits for, because f may end its goroutine or hang.
func (h *Hooks) call(what string, n int, f func(i int)) {
	if n == 0 || h.hanging.Load() > 0 {
		return
	}
	var done atomic.Int64
	over := make(chan struct{})
	go h.run(what, 0, n, f, &done, over)
	timer := time.NewTimer(h.limit)
	defer timer.Stop()
	for seen := int64(0); ; {
		select {
		case <-over:
			return
		case <-timer.C:
		}
		if now := done.Load(); now > seen { // it is slow, but does not hang
			seen = now
			timer.Reset(h.limit)
			continue
		}
		break
	}
	h.hanging.Add(1)
	go func() {
		<-over
		h.hanging.Add(-1)
	}()
	h.log.Error("observer does not return: it is told nothing until it does", "hook", what, "limit", h.limit)
}

// run calls f for from to n-1 and then closes over. A call that ends the goroutine is followed by another goroutine.
func (h *Hooks) run(what string, from, n int, f func(i int), done *atomic.Int64, over chan struct{}) {
	next := from
	defer func() {
		if next < n {
			go h.run(what, next, n, f, done, over)
			return
		}
		close(over)
	}()
	for next < n {
		i := next
		next++
		usercode.Run("observer's function "+what, func() error {
			f(i)
			return nil
		}, func(err error) {
			done.Add(1)
			if err != nil {
				h.complain(what, err)
			}
		})
	}
}

// complain logs a panic of a function, at most once per minute.
func (h *Hooks) complain(what string, err error) {
	h.mu.Lock()
	c := h.complaints[what]
	if c == nil {
		c = &complaint{}
		h.complaints[what] = c
	}
	now := time.Now()
	if !c.said.IsZero() && now.Sub(c.said) < every {
		c.dropped++
		h.mu.Unlock()
		return
	}
	dropped := c.dropped
	c.said, c.dropped = now, 0
	h.mu.Unlock()
	h.log.Error("observer panicked", "hook", what, "not_logged", dropped, "stack", err.Error())
}

// Chain calls run inside the middleware ms, the first of them outermost.
func Chain(ctx context.Context, ms []outbox.Middleware, e outbox.Event, run func(context.Context) error) error {
	return chain(ctx, ms, e, run)
}

// ChainBatch is Chain for a call with several events.
func ChainBatch(
	ctx context.Context, ms []outbox.BatchMiddleware, events []outbox.Event, run func(context.Context) error,
) error {
	return chain(ctx, ms, events, run)
}

// chain calls run inside the middleware ms of a call with e.
func chain[E any, M ~func(context.Context, E, func(context.Context) error) error](
	ctx context.Context, ms []M, e E, run func(context.Context) error,
) error {
	if len(ms) == 0 {
		return run(ctx)
	}
	return ms[0](ctx, e, func(ctx context.Context) error { return chain(ctx, ms[1:], e, run) })
}
