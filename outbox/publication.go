package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
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
	broker   string
	outgoing func(Event, json.RawMessage) (Outgoing, error)
}

// Publish ties t to a publisher in place of a handler.
func Publish[P any](t Topic[P], p Publication[P]) TopicHandler {
	th := Handle[any](t, nil, nil)
	th.publication = newPublication(t, p)
	return th
}

func newPublication[P any](t Topic[P], p Publication[P]) *publication {
	decode := decoder(t)
	return &publication{broker: p.Broker, outgoing: func(e Event, payload json.RawMessage) (Outgoing, error) {
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

// Bounds of the pause of a publisher that is unavailable.
const (
	firstPublisherPause   = 500 * time.Millisecond
	longestPublisherPause = 30 * time.Second
)

// target is a publisher as one dispatcher or listener sees it.
type target struct {
	broker    string
	publisher Publisher

	mu    sync.Mutex
	until time.Time // paused
	cause error     // of the pause
	tries int       // times in a row that it was unavailable
}

// addTarget adds the publisher of broker to targets.
func addTarget(targets map[string]*target, publishers map[string]Publisher, broker string) error {
	if targets[broker] != nil {
		return nil
	}
	p, there := publishers[broker]
	switch {
	case !there && len(publishers) > 0:
		return fmt.Errorf("publishes to %s: field Publishers has none of that name, but %s", broker, strings.Join(slices.Sorted(maps.Keys(publishers)), ", "))
	case !there:
		return fmt.Errorf("publishes to %s: field Publishers has none of that name", broker)
	case p == nil:
		return fmt.Errorf("publishes to %s: its entry in field Publishers is nil", broker)
	}
	targets[broker] = &target{broker: broker, publisher: p}
	return nil
}

// open returns the topics that can be handled now: all but those whose publisher is paused.
func (d *Dispatcher) open(now time.Time) []string {
	topics := make([]string, 0, len(d.topics))
	for _, topic := range d.topics {
		if p := d.handlers[topic].publication; p == nil || d.targets[p.broker].resting(now) == nil {
			topics = append(topics, topic)
		}
	}
	return topics
}

// pause returns how long t is paused.
func (t *target) pause() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(time.Until(t.until), 0)
}

// heed pauses t when one of errs says that it is unavailable, for longer each time, and returns for how long.
func (t *target) heed(errs []error) (pause time.Duration, because error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, err := range errs {
		switch {
		case err == nil:
			t.tries = 0
		case IsUnavailable(err) && because == nil:
			because = err
		}
	}
	if because == nil {
		return 0, nil
	}
	t.tries++
	pause = backoff(firstPublisherPause, longestPublisherPause, t.tries)
	t.until, t.cause = time.Now().Add(pause), because
	return pause, because
}

// resting returns why t is paused, nil when it is not.
func (t *target) resting(now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !now.Before(t.until) {
		return nil
	}
	return t.cause
}

// send publishes events and returns an error for each. While t is paused none is sent, and the error is what paused it.
// It survives a publisher that panics or answers too little.
func (t *target) send(ctx context.Context, log *slog.Logger, events []Outgoing) (errs []error) {
	if because := t.resting(time.Now()); because != nil {
		return allFail(len(events), because)
	}
	defer func() {
		if r := recover(); r != nil {
			stack := debug.Stack()
			log.Error("publisher panicked", "publisher", t.broker, "stack", string(stack))
			errs = allFail(len(events), fmt.Errorf("publisher panicked: %.1000v", r))
		}
		if pause, because := t.heed(errs); because != nil {
			log.Warn("publisher is unavailable", "publisher", t.broker, "pause", pause, "error", errorText(because))
		}
	}()
	errs = t.publisher.Publish(ctx, events)
	if len(errs) != len(events) {
		errs = allFail(len(events), fmt.Errorf("publisher returned %d results for %d events", len(errs), len(events)))
	}
	return errs
}

func allFail(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// handedBack reports whether err leaves its event as it was, the attempt uncounted.
func handedBack(err error) bool {
	return err != nil && (IsUnavailable(err) || errors.Is(err, ErrBehind) || errors.Is(err, ErrNotSent))
}

// publish sends the events of tasks, all of one target, and notes the results.
func (d *Dispatcher) publish(ctx context.Context, l *leases, t *target, tasks []*task, report func(*task)) {
	events := make([]Outgoing, 0, len(tasks))
	sent := make([]*task, 0, len(tasks))
	for _, k := range tasks {
		if !l.begin(k, func(error) {}) {
			k.err = ErrLeaseLost
			report(k)
			continue
		}
		o, err := d.handlers[k.Topic].publication.outgoing(k.Event, k.Payload)
		if err != nil {
			k.err = err
			report(k)
			continue
		}
		events, sent = append(events, o), append(sent, k)
	}
	if len(events) == 0 {
		return
	}
	for i, err := range t.send(ctx, d.log, events) {
		sent[i].err = err
		report(sent[i])
	}
}
