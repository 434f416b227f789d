package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// An outcome takes the payloads of its own topics.
func program(ctx context.Context, db operation.Beginner, p events.TurnFinalized) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		return tx.Settled(ctx, events.TurnStarted{TurnID: p.TurnID}) // error: cannot use events.TurnStarted
	})
}
