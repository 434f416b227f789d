package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// The type of the runtime cannot be made either.
func program(_ context.Context, _ events.TurnStarted, o *operation.Operation) operation.Outcome {
	return operation.Outcome{of: o} // error: unexported field of
}
