package queue

import (
	"context"
	"fmt"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// Report says what a Drain did.
type Report = outbox.DrainReport

// Drain delivers the events that are due, including those that handlers enqueue meanwhile, and returns when no more are
// due. Use it in a cron job, or for one shard of a backlog with TenantIDs. Events that failed and are due later stay.
// Topics and destinations that are unavailable rest, and their events stay too; the report names them. What an operator
// has paused stays as well. When ctx ends, Drain releases what was not started, waits for the running handlers, and
// cancels their contexts after ShutdownTimeout. It then returns the context's error, or an error that names the
// handlers that are still running a second later. It also returns at the first error of the database.
func (d *Dispatcher) Drain(ctx context.Context) (Report, error) {
	return d.DrainUpTo(ctx, outbox.DrainLimit{})
}

// DrainUpTo is Drain within limit. When it comes to a bound, it releases what was not started and waits for the running
// handlers as at the end of ctx, but returns no error: the report says which bound it was, and the next drain
// continues. Any number of processes may drain concurrently. One dispatcher may not: the second call returns an error.
func (d *Dispatcher) DrainUpTo(ctx context.Context, limit outbox.DrainLimit) (r Report, err error) {
	r.Ended = outbox.EndStopped
	ctx = config.WithKeyring(ctx, d.cfg.Keyring)
	bounded, cancel, err := config.DrainContext(ctx, limit)
	if err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	defer cancel()
	if !d.busy.CompareAndSwap(false, true) {
		return r, fmt.Errorf("drain: %w", errBusy)
	}
	defer d.busy.Store(false)
	defer func() {
		r.Resting = core.Resting(d.machine.Targets)
		d.rep.Flush()
	}()
	if _, err := d.readPauses(ctx); err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	if err := d.declareLimits(ctx, d.topics); err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	if err := d.fileAll(ctx, nil); err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	end, total := d.drain(bounded, cancel, limit.Events)
	r.Add(total)
	switch {
	case end.Err != nil && (end.Drained != core.DrainDone || bounded.Err() == nil): // at its end a sweep may be cut off
		return r, fmt.Errorf("drain: %w", end.Err)
	case len(end.Running) > 0:
		return r, fmt.Errorf("drain: still running after %s: %s", d.cfg.ShutdownTimeout, namesOf(end.Running))
	case ctx.Err() != nil:
		return r, ctx.Err()
	}
	r.Ended = map[core.Drained]outbox.DrainEnd{
		core.DrainDone: outbox.EndDrained, core.DrainLimit: outbox.EndEvents, core.DrainStopped: outbox.EndTime,
	}[end.Drained]
	if end.Err != nil {
		r.Ended = outbox.EndTime
	}
	return r, nil
}

// drain drains until ctx ends, or until limit events were handled if limit is positive.
func (d *Dispatcher) drain(ctx context.Context, cancel func(), limit int) (end *core.End, total Report) {
	cfg := d.machine
	cfg.Drain, cfg.Limit = true, limit
	inline := config.IsInline(ctx)
	if inline {
		cfg.Concurrency, cfg.Ahead = 1, 0
	}
	l := newLoop(ctx, d, cfg)
	defer l.Enforce(ctx, d.cfg.ShutdownTimeout, errShutdown)()
	if !inline {
		return l.loop(), l.total
	}
	l.calls = make(chan func())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.loop()
	}()
	left := true
	defer func() {
		if left { // a handler has ended this goroutine
			cancel()
			l.serve(ended)
		}
	}()
	l.serve(ended)
	left = false
	return l.end, l.total
}

// serve makes calls of user code until ended is closed.
func (l *loop) serve(ended <-chan struct{}) {
	for {
		select {
		case f := <-l.calls:
			f()
		case <-ended:
			return
		}
	}
}
