package queue

import (
	"context"
	"encoding/json"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// Publish ties t to a publisher instead of a handler.
func Publish[P any](t outbox.Topic[P], p publish.Publication) Handler {
	return published(t.Untyped(), p)
}

func published(t *outbox.UntypedTopic, p publish.Publication) Handler {
	th := HandleUntyped(t, nil, nil)
	th.publication = target.NewRoute(t, p)
	return th
}

// send makes the call s and returns what was sent. failed are the tasks that could not be sent.
func (l *loop) send(s *core.Send) (sent *core.Sent, failed []*core.Task) {
	to := l.d.targetOf[s.To]
	tasks := make([]*core.Task, 0, len(s.Tasks))
	for _, t := range s.Tasks {
		if l.ended(t) || late(t, "published") {
			failed = append(failed, t)
		} else {
			tasks = append(tasks, t)
		}
	}
	sent = &core.Sent{Send: s}
	var events []publish.Outgoing
	if s.To.ByEvent {
		to = to.Named(s.Destination)
		for _, t := range tasks {
			events = append(events, *taskOf(t).outgoing)
		}
		sent.Tasks = tasks
	} else {
		var unfit []*core.Task
		sent.Tasks, events, unfit = l.d.prepare(l.WorkCtx, tasks)
		if failed = append(failed, unfit...); len(unfit) > 0 && len(events) > 0 {
			l.report(failed) // they do not wait for the call
			failed = nil
		}
	}
	if len(events) == 0 { // nothing was tried
		return sent, failed
	}
	var results []errclass.Result
	results, sent.Cut = to.Call(l.WorkCtx, events, s.Try, func() {})
	for i, t := range sent.Tasks {
		t.Result, t.Tried = results[i], true
	}
	return sent, failed
}

// route finds out where the events of tasks go. failed are those that cannot be published.
func (l *loop) route(r *core.Route) (routed *core.Routed, failed []*core.Task) {
	routed = &core.Routed{Route: r}
	var live []*core.Task
	for _, t := range r.Tasks {
		if l.ended(t) {
			failed = append(failed, t)
		} else {
			live = append(live, t)
		}
	}
	tasks, events, unfit := l.d.prepare(l.WorkCtx, live)
	failed = append(failed, unfit...)
	lines := make(map[string]int)
	for i, t := range tasks {
		taskOf(t).outgoing = &events[i]
		to := events[i].Destination
		n, known := lines[to]
		if !known {
			n = len(routed.Destinations)
			lines[to] = n
			routed.Destinations = append(routed.Destinations, core.Destined{Destination: to})
		}
		routed.Destinations[n].Tasks = append(routed.Destinations[n].Tasks, t)
	}
	return routed, failed
}

// prepare makes the outgoing form of the events of tasks. failed are those that cannot be published.
func (d *Dispatcher) prepare(
	ctx context.Context, tasks []*core.Task,
) (ready []*core.Task, events []publish.Outgoing, failed []*core.Task) {
	made, results := target.Prepare(ctx, len(tasks), func(i int) (*target.Route, *outbox.Event, json.RawMessage) {
		c := taskOf(tasks[i]).claimed
		return d.handlers[c.Topic].publication, &c.Event, c.Payload
	})
	events = make([]publish.Outgoing, 0, len(tasks))
	ready = make([]*core.Task, 0, len(tasks))
	for i, t := range tasks {
		if results[i].Class != errclass.ClassDone {
			t.Result = results[i]
			failed = append(failed, t)
			continue
		}
		events, ready = append(events, made[i]), append(ready, t)
	}
	return ready, events, failed
}
