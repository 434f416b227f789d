package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// task is one claimed event in this process. The loop owns it until it is queued, the worker while it runs,
// the loop again once it is reported; held and its lease belong to leases.
type task struct {
	Claimed
	err    error                   // what the handler made of it
	cancel context.CancelCauseFunc // of the handler's context, set by leases.begin
	lost   bool
}

// leases knows every event that this process holds, renews their leases, and cancels the handlers of those
// it could not keep.
type leases struct {
	d  *Dispatcher
	mu sync.Mutex
	of map[*task]struct{}
}

func newLeases(d *Dispatcher) *leases { return &leases{d: d, of: make(map[*task]struct{})} }

func (l *leases) add(t *task) {
	l.mu.Lock()
	l.of[t] = struct{}{}
	l.mu.Unlock()
}

// drop forgets t and tells whether its lease was lost.
func (l *leases) drop(t *task) (lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, t)
	return t.lost
}

// begin returns the context of t's handler, cancelled with ErrLeaseLost when its lease goes.
func (l *leases) begin(parent context.Context, t *task) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	l.mu.Lock()
	t.cancel = cancel
	lost := t.lost
	l.mu.Unlock()
	if lost {
		cancel(ErrLeaseLost)
	}
	return ctx, cancel
}

// renew keeps leases alive until ctx ends. A lease is renewed when a third of it has gone, and given up a
// tenth before its end, by this process's monotonic clock from before the claim was sent: the database's
// idea of its end is never earlier.
func (l *leases) renew(ctx context.Context) {
	lease := l.d.cfg.LeaseDuration
	tick := time.NewTicker(lease / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if due := l.due(now, lease); len(due) > 0 {
			l.extend(ctx, now, due)
		}
	}
}

// due returns what is to be renewed, and cancels what is past saving.
func (l *leases) due(now time.Time, lease time.Duration) []*task {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due []*task
	for t := range l.of {
		left := t.deadline.Sub(now)
		switch {
		case t.lost:
		case left <= lease/10:
			l.lose(t)
		case left <= lease-lease/3:
			due = append(due, t)
		}
	}
	return due
}

// lose cancels t's handler; l.mu is held.
func (l *leases) lose(t *task) {
	t.lost = true
	if t.cancel != nil {
		t.cancel(ErrLeaseLost)
	}
	l.d.log.Warn("lease lost", "topic", t.Topic, "event_id", t.ID, "attempt", t.Attempt)
}

func (l *leases) extend(ctx context.Context, sent time.Time, due []*task) {
	events := make([]Claimed, len(due))
	for i, t := range due {
		events[i] = t.Claimed
	}
	lease := l.d.cfg.LeaseDuration
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(lease/5, time.Second))
	defer cancel()
	outcomes, err := l.d.store.Extend(ctx, lease, events...)
	if err != nil {
		l.d.log.Warn("renew leases", "count", len(due), "error", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, t := range due {
		if _, held := l.of[t]; !held {
			continue // finished meanwhile
		}
		if outcomes[i] == Lost {
			l.lose(t)
		} else {
			t.deadline = sent.Add(lease)
		}
	}
	l.d.signals.renewed.emit()
}

// do runs the handler of t and notes its result. It survives panics and reports runtime.Goexit, which
// still ends the goroutine.
func (d *Dispatcher) do(ctx context.Context, l *leases, t *task, report func(*task)) {
	ctx, cancel := l.begin(ctx, t)
	t.err = errors.New("handler called runtime.Goexit")
	defer func() {
		cancel(nil)
		if r := recover(); r != nil {
			t.err = fmt.Errorf("handler panicked: %v\n%s", r, debug.Stack())
			d.log.Error("handler panicked", "topic", t.Topic, "event_id", t.ID, "attempt", t.Attempt, "stack", string(debug.Stack()))
		}
		report(t)
	}()
	t.err = d.handlers[t.Topic].run(ctx, t.Event, t.Payload)
}

// settlement turns finished tasks into the acks and nacks of an exchange.
func (d *Dispatcher) settlement(l *leases, finished []*task) *exchange {
	x := &exchange{}
	for _, t := range finished {
		lost := l.drop(t)
		switch {
		case t.err == nil:
			x.acks = append(x.acks, t.Claimed) // also when the lease was lost: the fence decides
		case lost:
			d.log.Warn("event lost", "topic", t.Topic, "event_id", t.ID, "attempt", t.Attempt, "error", errorText(t.err))
		default:
			x.nacks = append(x.nacks, Failure{Claimed: t.Claimed, Err: t.err})
		}
	}
	return x
}

// account logs the outcomes of x and adds them up.
func (d *Dispatcher) account(x *exchange, r *DrainReport) {
	for i, o := range x.acked {
		if o == Lost {
			r.Lost++
			d.log.Error("event was handled but lost to another claim", "topic", x.acks[i].Topic, "event_id", x.acks[i].ID, "attempt", x.acks[i].Attempt)
		} else {
			r.Delivered++
		}
	}
	for i, o := range x.nacked {
		f := &x.nacks[i]
		attrs := []any{"topic", f.Topic, "event_id", f.ID, "attempt", f.Attempt, "error", errorText(f.Err)}
		switch {
		case o == Lost:
			r.Lost++
			d.log.Error("event failed and was lost to another claim", attrs...)
		case x.died[i]:
			r.Dead++
			d.log.Error("event is dead", attrs...)
		default:
			r.Retried++
			d.log.Warn("event failed", attrs...)
		}
	}
}
