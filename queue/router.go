package queue

import (
	"context"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/publish"
)

// router sends the events of topics whose events say where they go. Each destination has a line: one call of the publisher
// at a time, and the events that wait for it to return. So destinations do not wait for each other. The events of one that
// rests or has stalled are handed back, because a claim cannot leave them out: it knows topics, not destinations.
type router struct {
	l *loop
	t *target.Target

	mu    sync.Mutex
	lines map[string]*line
}

// line has the events in flight for one destination.
type line struct {
	to       *target.Target
	waiting  []routed
	inFlight int // in the call under way
}

// routed is an event and its outgoing form.
type routed struct {
	*task
	outgoing publish.Outgoing
}

func newRouter(l *loop, t *target.Target) *router {
	return &router{l: l, t: t, lines: make(map[string]*line)}
}

// report reports a task to the loop. After a stop that did not wait for its call nobody reads reports.
func (r *router) report(k *task) {
	select {
	case r.l.reports <- k:
	case <-r.l.over:
	}
}

// route adds tasks to the lines of their destinations.
func (r *router) route(tasks []*task) {
	ready, events := r.l.d.prepare(tasks, r.report)
	for destination, tasks := range byDestination(ready, events) {
		r.add(destination, tasks)
	}
}

func byDestination(tasks []*task, events []publish.Outgoing) map[string][]routed {
	lines := make(map[string][]routed)
	for i, k := range tasks {
		to := events[i].Destination
		lines[to] = append(lines[to], routed{k, events[i]})
	}
	return lines
}

// add adds tasks to the line of a destination, and starts it if it does not run.
func (r *router) add(destination string, tasks []routed) {
	r.mu.Lock()
	n := r.lines[destination]
	starts := n == nil
	if starts {
		n = &line{to: r.t.ByEvent.Enter(destination)}
	}
	why, takes := n.to.Refuses(time.Now())
	switch {
	case takes:
		n.waiting = append(n.waiting, tasks...)
		if starts {
			r.lines[destination] = n
			r.l.workers.Go(func() { r.run(destination, n) })
		}
	case starts:
		r.t.ByEvent.Leave(destination, n.to)
	}
	r.mu.Unlock()
	if takes {
		return
	}
	for _, k := range tasks {
		k.result, k.wait = why, n.to.LaterDelay()
		r.report(k.task)
	}
}

// run sends the events of a line until none wait.
func (r *router) run(destination string, n *line) {
	for {
		r.mu.Lock()
		batch := n.waiting[:min(len(n.waiting), target.BatchSize)]
		n.waiting, n.inFlight = n.waiting[len(batch):], len(batch)
		if len(batch) == 0 {
			delete(r.lines, destination)
			r.t.ByEvent.Leave(destination, n.to)
		}
		r.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		r.l.d.publishTo(r.l.WorkCtx, r.l.leases, n.to, batch, r.report)
	}
}

// stalled counts the events in flight to destinations whose calls take long. They take no room from the others.
func (r *router) stalled(now time.Time) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, each := range r.lines {
		if is, _ := each.to.Stalled(now); is {
			n += each.inFlight + len(each.waiting)
		}
	}
	return n
}

// withdraw removes the events that wait and are gone, and returns them.
func (r *router) withdraw(gone func(*task) bool) (removed []*task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.lines {
		var stay []routed
		for _, k := range n.waiting {
			if gone(k.task) {
				removed = append(removed, k.task)
			} else {
				stay = append(stay, k)
			}
		}
		n.waiting = stay
	}
	return removed
}

// publishTo sends events of one destination and reports the results. Those that are handed back come again when the
// destination may have recovered.
func (d *Dispatcher) publishTo(ctx context.Context, l *leases, to *target.Target, tasks []routed, report func(*task)) {
	begun := make([]routed, 0, len(tasks))
	for _, k := range tasks {
		if l.begin(k.task, func(error) {}) {
			begun = append(begun, k)
		} else {
			k.result = errclass.New(errclass.ClassNotSent, "its lease ran out before it was published")
			report(k.task)
		}
	}
	admitted, why := to.Admit(len(begun))
	for _, k := range begun[admitted:] {
		k.result, k.wait = why, to.LaterDelay()
		report(k.task)
	}
	if begun = begun[:admitted]; len(begun) == 0 {
		return
	}
	events := make([]publish.Outgoing, len(begun))
	for i := range begun {
		events[i] = begun[i].outgoing
	}
	results := to.Send(ctx, events)
	to.CallReturned()
	for i, k := range begun {
		k.result, k.tried, k.wait = results[i], true, max(to.RetryIn(), time.Millisecond)
		report(k.task)
	}
}
