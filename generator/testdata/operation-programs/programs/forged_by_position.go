package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// An outcome cannot be written as a literal.
func program(ctx context.Context, db operation.Beginner, p events.TurnFinalized) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		return events.FinalizeTurnOutcome{operation.Outcome{}}, nil // error: implicit assignment to unexported field finalizeTurnOutcome
	})
}
