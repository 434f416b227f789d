package publishtest_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/publishtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryBus is a Bus in memory that can have faults.
type memoryBus struct {
	released chan struct{} // closed to end calls that hang

	mu    sync.Mutex
	fault publishtest.Fault
	taken map[string][]publish.Message // by subject
}

const maxBody = 512 << 10

func newMemoryBus() *memoryBus {
	return &memoryBus{released: make(chan struct{}), taken: make(map[string][]publish.Message)}
}

func (b *memoryBus) set(f publishtest.Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = f
}

func (b *memoryBus) received(subject string) []publish.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]publish.Message(nil), b.taken[subject]...)
}

func (b *memoryBus) Send(ctx context.Context, subject string, headers map[string]string, body []byte) error {
	b.mu.Lock()
	fault := b.fault
	b.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case fault == publishtest.Failing:
		return errors.New("try again")
	case fault == publishtest.Down:
		return errNotConnected
	case fault == publishtest.Hanging:
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.released:
			return errNotConnected
		}
	case len(body) > maxBody:
		return errTooLarge
	}
	m := publish.Message{Headers: maps.Clone(headers), Attributes: make(map[string]string), Body: append([]byte(nil), body...)}
	m.ContentType = m.Headers["content-type"]
	for name, value := range headers {
		if attribute, found := strings.CutPrefix(name, "ce-"); found {
			m.Attributes[attribute] = value
			delete(m.Headers, name)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken[subject] = append(b.taken[subject], m)
	return nil
}

// target returns a memoryBus and a publisher for it, which create makes.
func target(t testing.TB, create func(*memoryBus) publish.Publisher) publishtest.Target {
	bus := newMemoryBus()
	t.Cleanup(func() { close(bus.released) })
	return publishtest.Target{
		Publisher:   create(bus),
		Destination: "users.renamed",
		Received:    func() []publish.Message { return bus.received("users.renamed") },
		Set:         bus.set,
		Refuse: func(o *publish.Outgoing) {
			o.Payload = []byte(`"` + strings.Repeat("x", maxBody) + `"`)
		},
	}
}

func newPublisher(bus Bus, encoder publish.Encoder) *BusPublisher {
	return &BusPublisher{Bus: bus, Encoder: encoder, Timeout: 10 * time.Second}
}

// TestBusPublisher: the publisher of docs/publishers.md passes.
func TestBusPublisher(t *testing.T) {
	t.Parallel()
	publishtest.Run(t, publishtest.Harness{Start: func(t testing.TB) publishtest.Target {
		return target(t, func(bus *memoryBus) publish.Publisher { return newPublisher(bus, nil) })
	}})
}

// TestPageShowsThisPublisher: the code in docs/publishers.md is custom_test.go and has at most 60 lines.
func TestPageShowsThisPublisher(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("custom_test.go")
	require.NoError(t, err)
	code := strings.Replace(string(source), "package publishtest_test", "package bus", 1)
	require.LessOrEqual(t, strings.Count(code, "\n"), 60)
	page, err := os.ReadFile("../../docs/publishers.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "```go\n"+code+"```\n")
}
