package outbox

import (
	"context"
	"fmt"
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
	renewer.Go(func() { l.renew(helpers) })
	defer renewer.Wait()
	defer stop()

	n, err := d.store.sweep(ctx, d.request(0, false))
	if err != nil {
		return r, fmt.Errorf("drain: %w", err)
	}
	r.Dead += n
	x := &exchange{}
	for {
		if x.claim = nil; ctx.Err() == nil {
			x.claim = d.request(d.cfg.BatchSize, true)
		}
		if err := d.store.exchange(context.WithoutCancel(ctx), x); err != nil {
			return r, fmt.Errorf("drain: %w", err)
		}
		d.account(x, &r)
		if len(x.claimed) == 0 {
			return r, ctx.Err()
		}
		x = d.drainBatch(ctx, l, x.claimed)
	}
}

// drainBatch runs the handlers of one claim and returns what is to be settled.
func (d *Dispatcher) drainBatch(ctx context.Context, l *leases, claimed []Claimed) *exchange {
	tasks := make([]*task, len(claimed))
	for i := range claimed {
		tasks[i] = &task{Claimed: claimed[i]}
		l.add(tasks[i])
	}
	started := 0
	finished := make([]*task, 0, len(tasks))
	work := context.WithoutCancel(ctx)
	if inline.Marked(ctx) {
		for ; started < len(tasks) && ctx.Err() == nil; started++ {
			d.do(work, l, tasks[started], func(t *task) { finished = append(finished, t) })
		}
	} else {
		var running sync.WaitGroup
		slots := make(chan struct{}, d.cfg.Concurrency)
		var mu sync.Mutex
		for ; started < len(tasks) && ctx.Err() == nil; started++ {
			slots <- struct{}{}
			t := tasks[started]
			running.Go(func() {
				defer func() { <-slots }()
				d.do(work, l, t, func(t *task) {
					mu.Lock()
					finished = append(finished, t)
					mu.Unlock()
				})
			})
		}
		running.Wait()
	}
	x := d.settlement(l, finished)
	for _, t := range tasks[started:] {
		l.drop(t)
		x.releases = append(x.releases, t.Claimed)
	}
	return x
}
