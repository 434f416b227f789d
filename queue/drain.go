package queue

import (
	"context"
	"fmt"
	"sync"

	"github.com/outboxgen/outboxgen/internal/inline"
	"github.com/outboxgen/outboxgen/internal/relay"
	"github.com/outboxgen/outboxgen/internal/shutdown"
	"github.com/outboxgen/outboxgen/outbox"
)

// Report says what a Drain did.
type Report = outbox.DrainReport

// Drain delivers the events that are due, including those that handlers enqueue meanwhile, and returns when no more are
// due. Use it in a cron job, or for one shard of a backlog with TenantIDs. Events that failed and are due later stay.
// Topics and destinations that are unavailable rest, and their events stay too; the report names them. When ctx ends,
// Drain releases what was not started, waits for the running handlers, and cancels their contexts after
// ShutdownTimeout. It then returns the context's error, or an error that names the handlers that are still running a
// second later. It also returns at the first error of the database.
func (d *Dispatcher) Drain(ctx context.Context) (r Report, err error) {
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
	if err := d.drain(ctx, l, &r); err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	return r, ctx.Err()
}

func (d *Dispatcher) drain(ctx context.Context, l *leases, r *Report) error {
	tried := make(map[*relay.Target]bool) // resting targets of which an event was tried
	var finished []*task
	walks := newClaims(d)
	for x := new(roundTrip); ; {
		x.claim = nil
		try := d.tryable()
		switch {
		case ctx.Err() != nil:
			try = nil
		case try != nil && !tried[try]:
			tried[try] = true
			x.claim = walks.try(try, true)
		default:
			try, x.claim = nil, walks.request(d.cfg.BatchSize, true, walks.nextPieces)
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
		switch {
		case len(x.claimed) == 0 && err != nil:
			return err
		case len(x.claimed) == 0 && try == nil && !more:
			if ctx.Err() != nil {
				return nil
			}
			n, _, err := d.store.sweep(ctx, d.scope(), 0, d.onSwept) // now that few events are left to walk over
			r.Dead += n
			return err
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
				return err
			}
			r.Add(d.account(x))
			return fmt.Errorf("still running after %s: %s", d.cfg.ShutdownTimeout, l.names())
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
	published := make(map[*relay.Target][]*task)
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
	if inline.Marked(ctx) {
		spawn = func(run func()) { run() }
	}
	for to, tasks := range published {
		spawn(func() { d.publish(e.WorkCtx, l, to, tasks, report) })
	}
	for i, t := range handled {
		select {
		case slots <- struct{}{}:
		case <-e.GiveUp:
		}
		if ctx.Err() != nil {
			unstarted = handled[i:]
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
