package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/outbox"
)

// The type of the runtime cannot be made either.
func program(_ context.Context, _ events.TurnStarted, o *outbox.Operation) outbox.OperationOutcome {
	return outbox.OperationOutcome{of: o} // error: unexported field of
}
