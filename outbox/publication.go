package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/guard"
	"github.com/outboxgen/outboxgen/internal/incoming"
	"github.com/outboxgen/outboxgen/internal/mark"
)

// publication is a Publication that has forgotten its type.
type publication struct {
	broker, destination string
	outgoing            func(Event, json.RawMessage) (Outgoing, error)
}

func newPublication(t *UntypedTopic, p Publication) *publication {
	decoder := incoming.NewDecoder(t.Payload(), t.Version())
	return &publication{broker: p.Broker, destination: p.Destination, outgoing: func(e Event, payload json.RawMessage) (Outgoing, error) {
		o := Outgoing{Event: e, Payload: payload, Destination: p.Destination, Key: e.PartitionKey}
		if p.Key == nil && p.Headers == nil {
			return o, nil
		}
		decoded, err := decoder.Decode(e.Version, payload)
		if err != nil {
			return o, err
		}
		if p.Key != nil {
			key := p.Key(decoded)
			if err := key.Err(); err != nil {
				return o, Permanent(fmt.Errorf("key: %w", err))
			}
			o.Key = key.String()
		}
		if p.Headers != nil {
			if o.Headers = p.Headers(decoded); o.Headers == nil {
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
	over := t.callBegins(began)
	results := mark.All(t.deliver(ctx, events, true))
	over()
	ids := make([]uuid.UUID, len(events))
	for i := range events {
		ids[i] = events[i].ID
	}
	t.onResults(began, ids, results)
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
