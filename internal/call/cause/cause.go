// Package cause carries in a context which event a handler handles, so that what it enqueues can name its cause.
package cause

import (
	"context"

	"github.com/google/uuid"
)

// The headers of an event that another one has caused.
const (
	Header      = "causation_id"   // the id of the event that has caused it
	Correlation = "correlation_id" // the same for all events of a chain: that of the cause, or else the id of the cause
)

// Cause is an event that a handler handles. The zero value means none.
type Cause struct {
	ID      uuid.UUID
	Headers map[string]string // of the event; they must not be changed
}

// key is where a context keeps its Cause.
type key struct{}

// With returns a copy of ctx for the handler of an event.
func With(ctx context.Context, id uuid.UUID, headers map[string]string) context.Context {
	return context.WithValue(ctx, key{}, Cause{id, headers})
}

// Of returns the event whose handler has got ctx, or a context from which ctx is derived. It is zero if there is none.
func Of(ctx context.Context) Cause {
	c, _ := ctx.Value(key{}).(Cause)
	return c
}
