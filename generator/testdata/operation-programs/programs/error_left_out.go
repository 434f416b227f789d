package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// The error of an outcome cannot be left out.
func program(ctx context.Context, db operation.Beginner, p events.TurnFinalized) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		return tx.Settled(ctx, p), nil // error: multiple-value tx.Settled(ctx, p)
	})
}
