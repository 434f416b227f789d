package queue

import (
	"context"
	"encoding/json"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
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

// publish sends the events of tasks, all of one target, and reports the results.
func (d *Dispatcher) publish(ctx context.Context, l *leases, t *target.Target, tasks []*task, report func(*task)) {
	begun := make([]*task, 0, len(tasks))
	for _, k := range tasks {
		if l.begin(k, func(error) {}) {
			begun = append(begun, k)
		} else {
			k.result = errclass.New(errclass.ClassNotSent, "its lease ran out before it was published")
			report(k)
		}
	}
	admitted, why := t.Admit(len(begun))
	for _, k := range begun[admitted:] {
		k.result = why
		report(k)
	}
	if begun = begun[:admitted]; len(begun) == 0 {
		return
	}
	sent, events := d.prepare(begun, report)
	if len(events) == 0 {
		t.OnResults(time.Now(), nil, nil) // nothing was tried
		return
	}
	for i, r := range t.Send(ctx, events) {
		sent[i].result, sent[i].tried = r, true
		report(sent[i])
	}
}

// prepare makes the outgoing form of the events of tasks. It reports those that cannot be published.
func (d *Dispatcher) prepare(tasks []*task, report func(*task)) ([]*task, []publish.Outgoing) {
	made, results := target.Prepare(len(tasks), func(i int) (*target.Route, *outbox.Event, json.RawMessage) {
		return d.handlers[tasks[i].Topic].publication, &tasks[i].Event, tasks[i].Payload
	})
	events := make([]publish.Outgoing, 0, len(tasks))
	ready := make([]*task, 0, len(tasks))
	for i, k := range tasks {
		if results[i].Class != errclass.ClassDone {
			k.result = results[i]
			report(k)
			continue
		}
		events, ready = append(events, made[i]), append(ready, k)
	}
	return ready, events
}
