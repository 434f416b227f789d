package publishtest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// Bus is the client of a broker that takes one message at a time and confirms it.
type Bus interface {
	Send(ctx context.Context, subject string, headers map[string]string, body []byte) error
}

// What a Bus says when it did not take a message.
var (
	errTooLarge     = errors.New("message too large")
	errNotConnected = errors.New("not connected")
)

// BusConfig says how a BusPublisher works.
type BusConfig struct {
	// Encoder makes messages of events; nil means CloudEvents in binary mode.
	Encoder publish.Encoder
	// Timeout of one message; 0 means 10 s.
	Timeout time.Duration
}

// BusPublisher publishes events to a Bus, in the order of their keys.
type BusPublisher struct {
	bus    Bus
	config BusConfig
}

// NewBusPublisher returns a publisher for bus.
func NewBusPublisher(bus Bus, config BusConfig) *BusPublisher {
	if config.Timeout <= 0 {
		config.Timeout = 10 * time.Second
	}
	return &BusPublisher{bus: bus, config: config}
}

// Publish implements outbox.Publisher.
func (p *BusPublisher) Publish(ctx context.Context, events []outbox.Outgoing) []error {
	return publish.Each(ctx, events, 16, p.send) // up to 16 keys at once
}

func (p *BusPublisher) send(ctx context.Context, o outbox.Outgoing) error {
	m, err := p.config.Encoder.Encode(o)
	if err != nil {
		return err // it says itself what becomes of the event
	}
	headers := make(map[string]string)
	maps.Copy(headers, m.Headers)
	for name, value := range m.Attributes {
		headers["ce-"+name] = value
	}
	headers["content-type"] = m.ContentType
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	err = p.bus.Send(ctx, o.Destination, headers, m.Body)
	switch {
	case errors.Is(err, errTooLarge):
		return outbox.Permanent(err) // no retry mends it: a dead letter
	case errors.Is(err, errNotConnected):
		return outbox.Unavailable(err) // not the event's fault: its attempt does not count
	}
	return err // nil, or a failed attempt
}

func Example() {
	bus := newMemoryBus()
	publisher := NewBusPublisher(bus, BusConfig{})
	errs := publisher.Publish(context.Background(), []outbox.Outgoing{{
		Event:       outbox.Event{ID: uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11"), Namespace: "users", Topic: "user_renamed", Version: 1},
		Payload:     []byte(`{"name":"Zoë"}`),
		Destination: "users.renamed",
		Key:         "user/17",
	}})
	m := bus.received("users.renamed")[0]
	fmt.Println(errs[0], m.Attributes["type"], m.Attributes["id"], string(m.Body))
	// Output: <nil> users.user_renamed 0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11 {"name":"Zoë"}
}
