package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// A path does not end in an outcome.
func program(ctx context.Context, db operation.Beginner, p events.TurnFinalized) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		if _, err := tx.Settled(ctx, p); err != nil {
			return events.FinalizeTurnOutcome{}, err
		}
	}) // error: missing return
}
