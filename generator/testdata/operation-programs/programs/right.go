package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
	"github.com/outboxgen/outboxgen/outbox"
)

// The program that the others are not: it compiles.
func program(ctx context.Context, db operation.Beginner, p events.TurnFinalized) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		if p.TurnID.String() == "" {
			return tx.Refused(), nil
		}
		if _, err := tx.Exec(ctx, "UPDATE turns SET state = 'finalized' WHERE id = $1", p.TurnID); err != nil {
			return events.FinalizeTurnOutcome{}, err
		}
		return tx.With(outbox.WithHeaders(nil)).Settled(ctx, p)
	})
}
