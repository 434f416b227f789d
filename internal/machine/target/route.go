// Package target holds what a dispatcher and a listener share to reach the targets of their events: topics with a
// handler, and destinations of a broker. A Target keeps track of whether it is available.
package target

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/rest"
	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
	"github.com/outboxgen/outboxgen/internal/payloads/sealing"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// Route is a Publication without its type parameter.
type Route struct {
	broker, destination, wireName string
	tombstone                     bool
	byEvent                       bool // each event says where it goes
	// the destination, the key and the headers, by user code; nil if there is none
	derive func(ctx context.Context, o *publish.Outgoing) error
}

func NewRoute(t *outbox.UntypedTopic, p publish.Publication) *Route {
	r := &Route{
		broker: p.Broker, destination: p.Destination, wireName: p.WireName, tombstone: p.Tombstone,
		byEvent: p.DestinationOf != nil,
	}
	if p.Key == nil && p.Headers == nil && p.DestinationOf == nil {
		return r
	}
	decoder := config.Opener(t)
	r.derive = func(ctx context.Context, o *publish.Outgoing) error {
		decoded, err := decoder.Derive(ctx, sealing.Event{ID: o.ID, Tenant: o.TenantID}, o.Version, o.Payload)
		if err != nil {
			return err
		}
		if p.DestinationOf != nil {
			if o.Destination = p.DestinationOf(decoded); o.Destination == "" || len(o.Destination) > maxDestination {
				return outbox.Permanent(fmt.Errorf("destination: the field of the payload has %d bytes: use 1 to %d",
					len(o.Destination), maxDestination))
			}
		}
		if p.Key != nil {
			key := p.Key(decoded)
			if err := key.Err(); err != nil {
				return outbox.Permanent(fmt.Errorf("key: %w", err))
			}
			o.Key = key.String()
		}
		if p.Headers != nil {
			own := o.Headers
			if o.Headers = p.Headers(decoded); o.Headers == nil {
				o.Headers = make(map[string]string, len(own))
			}
			for name, value := range own {
				o.Headers[name] = value
			}
		}
		return nil
	}
	return r
}

// outgoing returns the outgoing form of an event as far as no user code is needed.
func (r *Route) outgoing(e *outbox.Event, payload json.RawMessage) publish.Outgoing {
	return publish.Outgoing{
		Event: *e, Payload: payload, Destination: r.destination, Key: e.PartitionKey, WireName: r.wireName,
		Tombstone: r.tombstone,
	}
}

// ByEvent reports whether each event of r says where it goes.
func (r *Route) ByEvent() bool { return r.byEvent }

// maxDestination is the maximum length of a destination that an event says, in bytes.
const maxDestination = 1000

// BatchSize is how many events one call of a Publisher takes.
const BatchSize = 2000

// Send publishes events and returns a result for each. A publisher that panics, ends its goroutine or returns too few
// errors does no harm. Send returns when the publisher does. If t rests, the call is a try.
func (t *Target) Send(ctx context.Context, events []publish.Outgoing) []errclass.Result {
	began := time.Now()
	t.with(func(r *rest.Target) []rest.Note { r.CallBegins(began); return nil })
	results, cut := t.Call(ctx, events, t.Resting(), func() {
		t.with(func(r *rest.Target) []rest.Note { r.CallEnds(began); return nil })
	})
	ids := make([]uuid.UUID, len(events))
	for i := range events {
		ids[i] = events[i].ID
	}
	now := time.Now()
	t.with(func(r *rest.Target) []rest.Note { return r.OnCall(now, began, ids, results, cut) })
	return results
}

// Call is Send for an owner that keeps track of Rest by itself. Of a try, the context ends as soon as the process
// stops, because the try would probably fail anyway. returned is called when the publisher has returned, before
// observers are told. cut reports that the context of the call is over.
func (t *Target) Call(
	ctx context.Context, events []publish.Outgoing, try bool, returned func(),
) (results []errclass.Result, cut bool) {
	if try {
		var over func()
		ctx, over = shutdown.UntilStop(ctx)
		defer over()
	}
	hooks := t.all.Hooks
	told := t.told(events)
	hooks.Started(ctx, told)
	began := time.Now()
	errs := t.deliver(ctx, events, true)
	if returned(); told != nil {
		hooks.Finished(ctx, told, slices.Clone(errs), time.Since(began))
	}
	results = errclass.All(errs)
	checkBehind(events, results)
	return results, ctx.Err() != nil
}

// Named returns a target like t for logs of one of its destinations.
func (t *Target) Named(destination string) *Target {
	return &Target{Name: t.Rest.Broker.Name + ":" + destination, Publisher: t.Publisher, all: t.all}
}

// told returns what an observer is told of events, nil if there is none.
func (t *Target) told(events []publish.Outgoing) []outbox.Event {
	if !t.all.Hooks.WantsCalls() {
		return nil
	}
	told := make([]outbox.Event, len(events))
	for i := range events {
		told[i] = events[i].Event
	}
	return told
}

// deliver calls the publisher. If a call with several events panics, ends its goroutine or returns a wrong number of
// errors, one of them may be the reason. That event is found by halves, so that the others arrive. Some of them may
// then arrive twice.
func (t *Target) deliver(ctx context.Context, events []publish.Outgoing, logs bool) []error {
	var errs []error
	err := usercode.Call("publisher", usercode.Never, func() error {
		errs = t.Publisher.Publish(ctx, events)
		return nil
	})
	if err == nil && len(errs) == len(events) {
		return errs
	}
	var crashed *usercode.Crash
	switch {
	case err == nil:
		err = fmt.Errorf("publisher returned %d results for %d events", len(errs), len(events))
	case logs && errors.As(err, &crashed): // once per call, whatever the results of its parts
		t.all.log.Debug("publisher did not return", "target", t.Name, "count", len(events), "stack", crashed.Error())
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
	var rest []publish.Outgoing
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
			errs = append(errs, outbox.ErrBehind)
		} else {
			errs, sent = append(errs, sent[0]), sent[1:]
		}
	}
	return errs
}

// checkBehind replaces results that say "behind a failed event" where no event of the same key has failed before:
// without a failure to wait for, such an event would be tried again immediately, for ever. It looks at results and not
// at errors, because the methods of errors are user code.
func checkBehind(events []publish.Outgoing, results []errclass.Result) {
	var failed map[string]bool
	for i, r := range results {
		key := events[i].Key
		switch {
		case r.Class == errclass.ClassDone:
			continue
		case r.Behind && (key == "" || !failed[key]):
			results[i] = errclass.New(errclass.ClassFailed,
				"publisher returned outbox.ErrBehind for an event whose key has no failed event before it")
		}
		if failed == nil {
			failed = make(map[string]bool)
		}
		failed[key] = true
	}
}

// Prepare makes the outgoing form of n events, and returns a result for each that cannot be published: the codec of a
// payload, keys and headers are user code.
func Prepare(
	ctx context.Context, n int, of func(i int) (*Route, *outbox.Event, json.RawMessage),
) ([]publish.Outgoing, []errclass.Result) {
	made, results := make([]publish.Outgoing, n), make([]errclass.Result, n)
	var user []int // events with user code
	for i := range n {
		r, event, payload := of(i)
		if made[i] = r.outgoing(event, payload); r.derive != nil {
			user = append(user, i)
		}
	}
	if len(user) == 0 {
		return made, results
	}
	errs := usercode.Each("code for the key or headers", len(user), usercode.Limit, func(at int) (func(), error) {
		i := user[at]
		r, event, payload := of(i)
		o := r.outgoing(event, payload)
		err := r.derive(ctx, &o)
		return func() { made[i] = o }, err
	})
	for at, r := range errclass.All(errs) {
		results[user[at]] = r
	}
	return made, results
}
