package outbox

import (
	"context"
	"maps"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/broker/wireheader"
	"github.com/outboxgen/outboxgen/internal/call/cause"
)

// Headers of an event that a handler has enqueued. Dispatchers, listeners and consumers set them without the handler
// doing anything.
const (
	// CausationHeader has the id of the event whose handler has enqueued this one.
	CausationHeader = cause.Header
	// CorrelationHeader is the same for all events of a chain: that of the cause, or the id of the cause if it has none. A
	// producer may set it with WithHeaders, for example to the id of a request: all that follows has it then.
	CorrelationHeader = cause.Correlation
)

// ContextWithCause returns a copy of ctx for what e causes: events that are enqueued with it, or with a context derived
// from it, have the headers causation_id and correlation_id. Headers of these names that an event already has are kept.
//
// The context of a handler has its event as the cause already. A handler of batches has several events, and its context
// has no cause: call ContextWithCause for the event at hand, or use WithCause. The zero Event means no cause, for what a
// handler enqueues and does not want in the chain.
func ContextWithCause(ctx context.Context, e Event) context.Context {
	return cause.With(ctx, e.ID, e.Headers)
}

// CauseFromContext returns the event that causes what is enqueued with ctx: its ID and its Headers, which must not be
// changed. ok is false if there is none.
func CauseFromContext(ctx context.Context) (e Event, ok bool) {
	c := cause.Of(ctx)
	return Event{ID: c.ID, Headers: c.Headers}, c.ID != uuid.Nil
}

// WithCause says that e has caused the event, as ContextWithCause does, and instead of the cause that the context has.
// EnqueueInBatch has no context, so it needs WithCause. In a consumer, e is outbox.Event{ID: d.ID, Headers: d.Headers}.
// The zero Event changes nothing.
func WithCause(e Event) EnqueueOption {
	return func(o *enqueueOptions) { o.cause = cause.Cause{ID: e.ID, Headers: e.Headers} }
}

// chain are the headers of what an event causes. The zero value adds none.
type chain struct{ causation, correlation string }

// chainOf returns the headers of what c causes. A correlation id that is too long to be looked for, or that no publisher
// could carry, begins again with c, because a handler must not fail for what somebody else has set.
func chainOf(c cause.Cause) chain {
	if c.ID == uuid.Nil {
		return chain{}
	}
	id := c.ID.String()
	correlation := c.Headers[CorrelationHeader]
	if correlation == "" || len(correlation) > MaxKeyBytes || wireheader.Check(CorrelationHeader, correlation) != nil {
		correlation = id
	}
	return chain{id, correlation}
}

// addTo returns headers with those of a chain, unless they have them in any case. It does not change headers, which
// belong to the caller.
func (c chain) addTo(headers map[string]string) map[string]string {
	if c.causation == "" {
		return headers
	}
	var causation, correlation bool
	for name := range headers {
		causation = causation || strings.EqualFold(name, CausationHeader)
		correlation = correlation || strings.EqualFold(name, CorrelationHeader)
	}
	if causation && correlation {
		return headers
	}
	all := make(map[string]string, len(headers)+2)
	maps.Copy(all, headers)
	if !causation {
		all[CausationHeader] = c.causation
	}
	if !correlation {
		all[CorrelationHeader] = c.correlation
	}
	return all
}
