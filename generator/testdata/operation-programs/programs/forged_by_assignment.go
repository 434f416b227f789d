package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// The field of an outcome cannot be set.
func program(ctx context.Context, db operation.Beginner, p events.TurnFinalized) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		outcome := tx.Refused()
		outcome.finalizeTurnOutcome = operation.Outcome{} // error: unexported field finalizeTurnOutcome
		return outcome, nil
	})
}
