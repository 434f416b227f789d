package queue

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/outbox"
)

// Report says what a Drain did.
type Report = outbox.DrainReport

// Drain delivers the events that are due, including those that handlers enqueue meanwhile, and returns when no more are
// due. Use it in a cron job, or for one shard of a backlog with TenantIDs. Events that failed and are due later stay.
// Topics and destinations that are unavailable rest, and their events stay too; the report names them. What an operator has
// paused stays as well. When ctx ends,
// Drain releases what was not started, waits for the running handlers, and cancels their contexts after
// ShutdownTimeout. It then returns the context's error, or an error that names the handlers that are still running a
// second later. It also returns at the first error of the database.
func (d *Dispatcher) Drain(ctx context.Context) (Report, error) {
	return d.DrainUpTo(ctx, outbox.DrainLimit{})
}

// DrainUpTo is Drain within limit. When it comes to a bound, it releases what was not started and waits for the running
// handlers as at the end of ctx, but returns no error: the report says which bound it was, and the next drain continues.
// Any number of processes may drain concurrently. One dispatcher may not: the second call returns an error.
func (d *Dispatcher) DrainUpTo(ctx context.Context, limit outbox.DrainLimit) (r Report, err error) {
	r.Ended = outbox.EndStopped
	bounded, cancel, err := config.DrainContext(ctx, limit)
	if err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	defer cancel()
	if !d.busy.CompareAndSwap(false, true) {
		return r, fmt.Errorf("drain: %w", errBusy)
	}
	defer d.busy.Store(false)
	l := newLeases(d)
	helpers, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewer sync.WaitGroup
	renewer.Go(func() { l.renew(helpers, context.WithoutCancel(ctx)) })
	defer renewer.Wait()
	defer stop()
	defer func() {
		r.Resting = d.targets.Resting()
		d.rep.Flush()
	}()
	if _, err := d.readPauses(ctx); err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	ended, err := d.drain(bounded, l, limit.Events, &r)
	if err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	r.Ended = ended
	return r, nil
}

// drain drains until ctx ends, or until limit events were handled if limit is positive. The end of ctx counts as EndTime.
func (d *Dispatcher) drain(ctx context.Context, l *leases, limit int, r *Report) (outbox.DrainEnd, error) {
	tried := make(map[*target.Target]bool) // resting targets of which an event was tried
	var finished []*task
	walks := newClaims(d)
	read := time.Now() // what is paused
	handled := 0
	for x := new(roundTrip); ; {
		if time.Since(read) >= d.cfg.PollInterval {
			_, _ = d.readPauses(ctx) // after an error, what was read last holds
			read = time.Now()
		}
		size := d.cfg.BatchSize
		if limit > 0 {
			size = min(size, limit-handled)
		}
		x.claim = nil
		try := d.tryable()
		switch {
		case ctx.Err() != nil, size == 0:
			try = nil
		case try != nil && !tried[try]:
			tried[try] = true
			x.claim = walks.try(try, true)
		default:
			try, x.claim = nil, walks.request(size, true, walks.nextPieces)
		}
		more := false
		err := d.roundTrip(context.WithoutCancel(ctx), x)
		if try != nil {
			try.OnTry(len(x.claimed) > 0)
		}
		switch {
		case x.claim == nil || x.claimedAt.IsZero():
		case try != nil:
			walks.tried(try, x)
			more = walks.tries[try] != nil && len(x.claimed) == 0
			tried[try] = !more
		default:
			walks.ahead.advance(x)
			more = walks.ahead.more()
		}
		settled, open := x.divide(finished)
		l.settled(settled)
		r.Add(d.account(x))
		handled += len(x.claimed)
		switch {
		case len(x.claimed) == 0 && err != nil:
			return 0, err
		case len(x.claimed) == 0 && try == nil && !more:
			switch {
			case size == 0:
				return outbox.EndEvents, nil
			case ctx.Err() != nil:
				return outbox.EndTime, nil
			}
			n, _, err := d.store.sweep(ctx, d.scope(), 0, d.onSwept) // now that few events are left to walk over
			r.Dead += n
			if err != nil && ctx.Err() != nil {
				return outbox.EndTime, nil
			}
			return outbox.EndDrained, err
		}
		finished = open // what was claimed nevertheless is handled first
		tasks := make([]*task, len(x.claimed))
		for i := range tasks {
			tasks[i] = &task{Claimed: x.claimed[i]}
			l.add(tasks[i])
		}
		over, unstarted, running := d.drainBatch(ctx, l, tasks)
		for _, t := range over {
			if l.finish(t) {
				finished = append(finished, t)
			} else {
				r.Lost++
			}
		}
		for _, t := range unstarted {
			t.unstarted, t.result = true, notStarted
			l.finish(t)
			finished = append(finished, t)
		}
		x = d.settlement(finished)
		if running {
			if err := d.roundTrip(context.WithoutCancel(ctx), x); err != nil {
				return 0, err
			}
			r.Add(d.account(x))
			return 0, fmt.Errorf("still running after %s: %s", d.cfg.ShutdownTimeout, l.names())
		}
	}
}

// drainBatch handles tasks. It returns those that are over and, if ctx has ended, those that were not started. running
// reports that the handlers of others have not returned within ShutdownTimeout of the end of ctx.
func (d *Dispatcher) drainBatch(ctx context.Context, l *leases, tasks []*task) (over, unstarted []*task, running bool) {
	e := shutdown.New(outbox.ContextWithRunner(ctx, d.runner()))
	defer e.Enforce(ctx, d.cfg.ShutdownTimeout, errShutdown)()
	reports := make(chan *task, len(tasks))
	report := func(t *task) { reports <- t }
	var handled []*task
	published := make(map[*target.Target][]*task)
	for _, t := range tasks {
		if to := d.target(t.Topic); to.Publisher != nil {
			published[to] = append(published[to], t)
		} else {
			handled = append(handled, t)
		}
	}
	var workers sync.WaitGroup
	slots := make(chan struct{}, d.cfg.Concurrency)
	spawn := workers.Go
	if config.IsInline(ctx) {
		spawn = func(run func()) { run() }
	}
	for to, tasks := range published {
		if ctx.Err() != nil { // while they were claimed
			unstarted = append(unstarted, tasks...)
			continue
		}
		if to.ByEvent == nil {
			spawn(func() { d.publish(e.WorkCtx, l, to, tasks, report) })
			continue
		}
		ready, events := d.prepare(tasks, report)
		for destination, line := range byDestination(ready, events) {
			spawn(func() {
				sub := to.ByEvent.Enter(destination)
				defer to.ByEvent.Leave(destination, sub)
				d.publishTo(e.WorkCtx, l, sub, line, report)
			})
		}
	}
	for i, t := range handled {
		select {
		case slots <- struct{}{}:
		case <-e.GiveUp:
		}
		if ctx.Err() != nil {
			unstarted = append(unstarted, handled[i:]...)
			break
		}
		spawn(func() {
			d.runHandler(e.WorkCtx, l, t, func(t *task) {
				report(t)
				<-slots
			})
		})
	}
	for len(over) < len(tasks)-len(unstarted) {
		select {
		case t := <-reports:
			over = append(over, t)
		case <-e.GiveUp:
			return over, unstarted, true
		}
	}
	workers.Wait()
	return over, unstarted, false
}
