package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// The outcome of another operation does not fit.
func program(ctx context.Context, db operation.Beginner, p events.TurnStarted) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) {
		var started events.StartTurnOutcome
		err := events.StartTurn(ctx, tx, func(ctx context.Context, tx *events.StartTurnTx) (_ events.StartTurnOutcome, err error) {
			started, err = tx.Started(ctx, p)
			return started, err
		})
		return started, err // error: cannot use started (variable of struct type events.StartTurnOutcome)
	})
}
