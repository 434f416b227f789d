package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/outbox"
)

// The type of the runtime is not an outcome of the operation.
func program(ctx context.Context, db outbox.Beginner, p events.TurnFinalized) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		return outbox.OperationOutcome{}, nil // error: cannot use outbox.OperationOutcome{}
	})
}
