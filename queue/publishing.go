package queue

import (
	"context"
	"encoding/json"
	"time"

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
	sent = &core.Sent{Send: s}
	sent.Tasks, failed = l.sendable(s.Tasks)
	if s.To.ByEvent {
		to = to.Named(s.Destination)
	} else {
		ready, unfit := l.d.prepare(l.WorkCtx, sent.Tasks)
		sent.Tasks = ready
		if failed = append(failed, unfit...); len(failed) > 0 && len(sent.Tasks) > 0 {
			l.report(failed) // they do not wait for the call
			failed = nil
		}
	}
	if len(sent.Tasks) == 0 { // nothing was tried
		return sent, failed
	}
	events := make([]publish.Outgoing, len(sent.Tasks))
	for i, t := range sent.Tasks {
		events[i] = *taskOf(t).outgoing
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
	ready, unfit := l.d.prepare(l.WorkCtx, live)
	failed = append(failed, unfit...)
	lines := make(map[string]int)
	for _, t := range ready {
		to := taskOf(t).outgoing.Destination
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

// sendable returns those of tasks that may begin now, and the others.
func (l *loop) sendable(tasks []*core.Task) (may, not []*core.Task) {
	may = make([]*core.Task, 0, len(tasks))
	for _, t := range tasks {
		if l.ended(t) || late(t, "published") {
			not = append(not, t)
		} else {
			may = append(may, t)
		}
	}
	return may, not
}

// prepare makes the outgoing form of the events of tasks. failed are those that cannot be published, or not in the time that
// their rate allows.
func (d *Dispatcher) prepare(ctx context.Context, tasks []*core.Task) (ready, failed []*core.Task) {
	began := time.Now()
	made, results := target.Prepare(ctx, len(tasks), func(i int) (*target.Route, *outbox.Event, json.RawMessage) {
		c := taskOf(tasks[i]).claimed
		return d.handlers[c.Topic].publication, &c.Event, c.Payload
	})
	ready = make([]*core.Task, 0, len(tasks))
	for i, t := range tasks {
		if tooLate(t, began) {
			failed = append(failed, t)
			continue
		}
		if results[i].Class != errclass.ClassDone {
			t.Result = results[i]
			failed = append(failed, t)
			continue
		}
		taskOf(t).outgoing = &made[i]
		ready = append(ready, t)
	}
	return ready, failed
}
