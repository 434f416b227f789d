package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// An operation has the outcomes of the YAML only.
func program(ctx context.Context, db operation.Beginner, p events.TurnFinalized) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		return tx.Aborted(ctx, p) // error: tx.Aborted undefined
	})
}
