package publishtest_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/publishtest"
)

// fakeBus is a Bus in memory that fails on demand.
type fakeBus struct {
	mu    sync.Mutex
	fault publishtest.Fault
	taken []publish.Message
}

func (b *fakeBus) Send(ctx context.Context, _ string, headers map[string]string, body []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.fault == publishtest.Failing:
		return errors.New("try again")
	case b.fault == publishtest.Down:
		return errNotConnected
	case b.fault == publishtest.Hanging:
		b.mu.Unlock() // so that Set and other calls continue
		<-ctx.Done()
		b.mu.Lock()
		return ctx.Err()
	case len(body) > maxBody:
		return errTooLarge
	}
	m := publish.Message{ContentType: headers["content-type"], Attributes: map[string]string{}, Headers: map[string]string{}}
	m.Body = bytes.Clone(body) // the suite overwrites the payload after Publish has returned
	for name, value := range headers {
		if attribute, found := strings.CutPrefix(name, "ce-"); found {
			m.Attributes[attribute] = value // as it was before Publish: the suite finds an event by its id
		} else {
			m.Headers[name] = value
		}
	}
	b.taken = append(b.taken, m)
	return nil
}

func (b *fakeBus) Received() []publish.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.taken)
}

func (b *fakeBus) Set(fault publishtest.Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = fault
}

const maxBody = 512 << 10

func TestConformance(t *testing.T) {
	publishtest.Run(t, publishtest.Harness{Start: func(t testing.TB) publishtest.Target {
		bus := new(fakeBus)
		return publishtest.Target{
			Publisher:   &BusPublisher{Bus: bus, Timeout: 10 * time.Second},
			Destination: "users.renamed",
			Received:    bus.Received,
			Set:         bus.Set,
			Refuse:      func(o *publish.Outgoing) { o.Payload = []byte(`"` + strings.Repeat("x", maxBody) + `"`) },
		}
	}})
}
