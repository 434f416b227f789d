package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/outboxgen/outboxgen/internal/inline"
)

// DrainReport adds up what a Drain did.
type DrainReport struct {
	Delivered int // acked
	Retried   int // failed, due again later
	Dead      int // dead letters made, swept ones included
	Lost      int // handled, but the lease was lost meanwhile
}

// Drain delivers what is due now, what handlers enqueue meanwhile included, and returns when nothing more
// is: for a cron job, or one shard of a backlog with TenantIDs. Events that failed and are due later stay.
// When ctx ends it hands back what was not started, waits for the handlers that run, and returns the
// context's error; so it does at the first trouble with the database.
func (d *Dispatcher) Drain(ctx context.Context) (DrainReport, error) {
	var r DrainReport
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

	n, _, err := d.store.sweep(ctx, d.scope(), 0)
	if err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	r.Dead += n
	x := &exchange{}
	var finished []*task
	for {
		if x.claim = nil; ctx.Err() == nil {
			x.claim = d.request(d.cfg.BatchSize, true)
		}
		err := d.exchange(context.WithoutCancel(ctx), x)
		settled, open := x.divide(finished)
		l.settled(settled)
		r.add(d.account(x))
		switch {
		case len(x.claimed) == 0 && err != nil:
			return r, fmt.Errorf("drain: %w", err)
		case len(x.claimed) == 0:
			return r, ctx.Err()
		}
		finished = open // what was claimed all the same is handled first
		tasks := make([]*task, len(x.claimed))
		for i := range tasks {
			tasks[i] = &task{Claimed: x.claimed[i]}
			l.add(tasks[i])
		}
		started := d.drainBatch(ctx, l, tasks)
		for _, t := range tasks[:started] {
			if l.finish(t) {
				finished = append(finished, t)
			} else {
				r.Lost++
			}
		}
		for _, t := range tasks[started:] {
			t.unstarted = true
			l.finish(t)
			finished = append(finished, t)
		}
		x = settlement(finished)
	}
}

func (r *DrainReport) add(o DrainReport) {
	r.Delivered += o.Delivered
	r.Retried += o.Retried
	r.Dead += o.Dead
	r.Lost += o.Lost
}

// drainPublished sends the events of topics that publish, brings them to the front of tasks, and tells how many they
// are.
func (d *Dispatcher) drainPublished(work context.Context, l *leases, tasks []*task) (sent int) {
	if len(d.targets) == 0 {
		return 0
	}
	broker := func(t *task) string {
		if p := d.handlers[t.Topic].publication; p != nil {
			return p.broker
		}
		return "~" // behind every name
	}
	slices.SortStableFunc(tasks, func(a, b *task) int { return cmp.Compare(broker(a), broker(b)) })
	for sent < len(tasks) && broker(tasks[sent]) != "~" {
		end := sent
		for end < len(tasks) && broker(tasks[end]) == broker(tasks[sent]) {
			end++
		}
		d.publish(work, l, d.targets[broker(tasks[sent])], tasks[sent:end], func(*task) {})
		sent = end
	}
	return sent
}

// drainBatch runs the handlers of tasks until all have returned, and tells how many it started: all unless
// ctx ended.
func (d *Dispatcher) drainBatch(ctx context.Context, l *leases, tasks []*task) (started int) {
	work := context.WithoutCancel(ctx)
	started = d.drainPublished(work, l, tasks)
	if inline.Marked(ctx) {
		for ; started < len(tasks) && ctx.Err() == nil; started++ {
			d.do(work, l, tasks[started], func(*task) {})
		}
		return started
	}
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, d.cfg.Concurrency)
	for _, t := range tasks[started:] {
		slots <- struct{}{}
		if ctx.Err() != nil {
			return started
		}
		started++
		running.Go(func() {
			d.do(work, l, t, func(*task) { <-slots })
		})
	}
	return started
}
