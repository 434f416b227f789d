package publishtest_test

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// Bus is the client of a broker that takes one message at a time and confirms it.
type Bus interface {
	Send(ctx context.Context, subject string, headers map[string]string, body []byte) error
}

// Errors of a Bus that did not take a message.
var (
	errTooLarge     = errors.New("message too large")
	errNotConnected = errors.New("not connected")
)

// BusPublisher publishes events to a Bus, in the order of their keys.
type BusPublisher struct {
	Bus     Bus
	Encoder publish.Encoder // nil: CloudEvents in binary mode
	Timeout time.Duration   // of one message
}

// Publish implements publish.Publisher, with up to 16 keys concurrently.
func (p *BusPublisher) Publish(ctx context.Context, events []publish.Outgoing) []error {
	return publish.Each(ctx, events, 16, p.send)
}

func (p *BusPublisher) send(ctx context.Context, o publish.Outgoing) error {
	m, err := p.Encoder.Encode(o)
	if err != nil {
		return err // it says what happens to the event
	}
	headers := map[string]string{"content-type": m.ContentType}
	maps.Copy(headers, m.Headers)
	for name, value := range m.Attributes {
		headers["ce-"+name] = value
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	err = p.Bus.Send(ctx, o.Destination, headers, m.Body)
	switch {
	case errors.Is(err, errTooLarge):
		return outbox.Permanent(err) // trying again cannot help: a dead letter
	case errors.Is(err, errNotConnected):
		return outbox.Unavailable(err) // not the event's fault: its attempt does not count
	}
	return err // nil, or a failed attempt
}
