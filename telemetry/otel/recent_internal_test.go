package otel

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxgen/outboxgen/outbox"
)

// TestRecentIsBounded: events that are never settled are forgotten, the oldest first.
func TestRecentIsBounded(t *testing.T) {
	t.Parallel()
	var m recent
	r, first, last := outbox.Runner{Namespace: "shop"}, uuid.New(), uuid.New()
	span := seen{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})}
	m.put(r, first, span)
	for range generation {
		m.put(r, uuid.New(), span)
	}
	require.True(t, m.get(r, first).IsValid(), "a whole generation is kept")
	for range 2 * generation {
		m.put(r, uuid.New(), span)
	}
	m.put(r, last, span)
	require.False(t, m.get(r, first).IsValid())
	require.LessOrEqual(t, len(m.now)+len(m.old), 2*generation)
	require.False(t, m.get(outbox.Runner{Listener: "ears"}, last).IsValid(), "another runner has another event")
	require.True(t, m.take(r, last).IsValid())
	require.False(t, m.get(r, last).IsValid())
}
