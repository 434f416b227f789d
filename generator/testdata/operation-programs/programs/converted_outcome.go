package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// Nor can it be converted.
func program(ctx context.Context, db operation.Beginner, p events.TurnStarted) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		var started events.StartTurnOutcome
		err := events.StartTurn(ctx, tx, func(ctx context.Context, tx *events.StartTurnTx) (_ events.StartTurnOutcome, err error) {
			started, err = tx.Started(ctx, p)
			return started, err
		})
		return events.FinalizeTurnOutcome(started), err // error: cannot convert started
	})
}
