package program

import (
	"context"

	"example.com/events"
)

// The transaction of another operation does not fit.
func settle(ctx context.Context, tx *events.FinalizeTurnTx, p events.TurnFinalized) (events.FinalizeTurnOutcome, error) {
	return tx.Settled(ctx, p)
}

func program(ctx context.Context, tx *events.StartTurnTx, p events.TurnFinalized) (events.FinalizeTurnOutcome, error) {
	return settle(ctx, tx, p) // error: cannot use tx (variable of type *events.StartTurnTx)
}
