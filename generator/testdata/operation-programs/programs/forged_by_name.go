package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/outbox"
)

// An outcome cannot be written as a literal with names.
func program(ctx context.Context, db outbox.Beginner, p events.TurnFinalized) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		return events.FinalizeTurnOutcome{finalizeTurnOutcome: outbox.OperationOutcome{}}, nil // error: unexported field finalizeTurnOutcome
	})
}
