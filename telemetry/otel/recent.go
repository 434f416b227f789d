package otel

import (
	"sync"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxgen/outboxgen/outbox"
)

// generation is how many events a recent keeps at least.
const generation = 10_000

// held is an event in the hands of a runner. Several listeners of a process may have the same event.
type held struct {
	runner outbox.Runner
	event  uuid.UUID
}

// seen is the latest span of an event: that of its claim, or that of its handler.
type seen struct {
	trace.SpanContext
	handled bool
}

// recent remembers the latest span of events that were claimed and not settled yet. Some are never settled, because
// their lease was lost, so it forgets the oldest: it keeps between one and two generations. The zero value is ready to
// use.
type recent struct {
	mu       sync.Mutex
	now, old map[held]seen
}

func (m *recent) put(r outbox.Runner, id uuid.UUID, span seen) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == nil || len(m.now) >= generation {
		m.now, m.old = make(map[held]seen), m.now
	}
	m.now[held{r, id}] = span
}

// get returns the latest span of an event, or one that is not valid.
func (m *recent) get(r outbox.Runner, id uuid.UUID) seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	if span, ok := m.now[held{r, id}]; ok {
		return span
	}
	return m.old[held{r, id}]
}

// take is get, and forgets the event.
func (m *recent) take(r outbox.Runner, id uuid.UUID) seen {
	span := m.get(r, id)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.now, held{r, id})
	delete(m.old, held{r, id})
	return span
}
