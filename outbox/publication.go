package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/guard"
	"github.com/outboxgen/outboxgen/internal/mark"
)

// Publication says where a topic is published and as what. Generated code fills it from the YAML.
type Publication[P any] struct {
	// Broker is the key of the Publisher in the configuration: "kafka", "nats" or "webhook".
	Broker string
	// Destination is the broker's name for where events go.
	Destination string
	// Key keeps events in order at the broker; nil means the partition key of the event.
	Key func(P) Key
	// Headers are sent beside those of the event; nil means none. The event's own win.
	Headers func(P) map[string]string
}

// publication is a Publication that has forgotten its type.
type publication struct {
	broker, destination string
	outgoing            func(Event, json.RawMessage) (Outgoing, error)
}

// Publish ties t to a publisher in place of a handler.
func Publish[P any](t Topic[P], p Publication[P]) TopicHandler {
	th := Handle[any](t, nil, nil)
	th.publication = newPublication(t, p)
	return th
}

func newPublication[P any](t Topic[P], p Publication[P]) *publication {
	decode := decoder(t)
	return &publication{broker: p.Broker, destination: p.Destination, outgoing: func(e Event, payload json.RawMessage) (Outgoing, error) {
		o := Outgoing{Event: e, Payload: payload, Destination: p.Destination, Key: e.PartitionKey}
		if p.Key == nil && p.Headers == nil {
			return o, nil
		}
		d, err := decode(e, payload)
		if err != nil {
			return o, err
		}
		if p.Key != nil {
			key := p.Key(d.Payload)
			if err := keyError("key", key); err != nil {
				return o, Permanent(err)
			}
			o.Key = key.String()
		}
		if p.Headers != nil {
			if o.Headers = p.Headers(d.Payload); o.Headers == nil {
				o.Headers = make(map[string]string, len(e.Headers))
			}
			for name, value := range e.Headers {
				o.Headers[name] = value
			}
		}
		return o, nil
	}}
}

// publishBatch is how many events one call of a Publisher takes.
const publishBatch = 500

// send publishes events and returns a result for each. It survives a publisher that panics, ends its goroutine or
// answers too little, and returns when the publisher does.
func (t *target) send(ctx context.Context, events []Outgoing) []mark.Result {
	began := time.Now()
	over := t.call(began)
	results := mark.All(t.deliver(ctx, events, true))
	over()
	ids := make([]uuid.UUID, len(events))
	for i := range events {
		ids[i] = events[i].ID
	}
	t.heed(began, ids, results)
	return results
}

// deliver calls the publisher. When a call with several events does not return as it must, one of them may be the
// reason: it is found by halves, so that the others arrive. Some of them may then arrive twice.
func (t *target) deliver(ctx context.Context, events []Outgoing, logs bool) []error {
	var errs []error
	err := guard.Call("publisher", guard.Never, func() error {
		errs = t.publisher.Publish(ctx, events)
		return nil
	})
	if err == nil && len(errs) == len(events) {
		return errs
	}
	var crashed *guard.Crash
	switch {
	case err == nil:
		err = fmt.Errorf("publisher returned %d results for %d events", len(errs), len(events))
	case logs && errors.As(err, &crashed): // once for a call, whatever its parts come to
		t.log.Error("publisher did not return", "target", t.name, "count", len(events), "stack", crashed.Error())
	}
	if len(events) == 1 {
		return []error{err}
	}
	half := len(events) / 2
	errs = t.deliver(ctx, events[:half], false)
	failed := make(map[string]bool)
	for i, err := range errs {
		if events[i].Key != "" && err != nil {
			failed[events[i].Key] = true
		}
	}
	var rest []Outgoing
	for _, e := range events[half:] {
		if !failed[e.Key] {
			rest = append(rest, e)
		}
	}
	var sent []error
	if len(rest) > 0 {
		sent = t.deliver(ctx, rest, false)
	}
	for _, e := range events[half:] {
		if failed[e.Key] {
			errs = append(errs, ErrBehind)
		} else {
			errs, sent = append(errs, sent[0]), sent[1:]
		}
	}
	return errs
}

// outgoing makes what a publisher gets of n events, and returns a result for each that cannot be published: the codec
// of a payload, keys and headers are code of others.
func outgoing(n int, of func(i int) (*publication, Event, json.RawMessage)) ([]Outgoing, []mark.Result) {
	made := make([]Outgoing, n)
	errs := guard.Each("code for the key or headers", n, guard.Limit, func(i int) (func(), error) {
		p, event, payload := of(i)
		o, err := p.outgoing(event, payload)
		return func() { made[i] = o }, err
	})
	return made, mark.All(errs)
}

// publish sends the events of tasks, all of one target, and reports the results.
func (d *Dispatcher) publish(ctx context.Context, l *leases, t *target, tasks []*task, report func(*task)) {
	begun := make([]*task, 0, len(tasks))
	for _, k := range tasks {
		if l.begin(k, func(error) {}) {
			begun = append(begun, k)
		} else {
			k.result = mark.New(mark.ClassNotSent, "its lease ran out before it was published")
			report(k)
		}
	}
	admitted, why := t.admit(len(begun))
	for _, k := range begun[admitted:] {
		k.result = why
		report(k)
	}
	if begun = begun[:admitted]; len(begun) == 0 {
		return
	}
	made, results := outgoing(len(begun), func(i int) (*publication, Event, json.RawMessage) {
		return d.handlers[begun[i].Topic].publication, begun[i].Event, begun[i].Payload
	})
	events := make([]Outgoing, 0, len(begun))
	sent := make([]*task, 0, len(begun))
	for i, k := range begun {
		if results[i].Class != mark.ClassDone {
			k.result = results[i]
			report(k)
			continue
		}
		events, sent = append(events, made[i]), append(sent, k)
	}
	if len(events) == 0 {
		t.heed(time.Now(), nil, nil) // nothing was tried
		return
	}
	for i, r := range t.send(ctx, events) {
		sent[i].result, sent[i].tried = r, true
		report(sent[i])
	}
}
