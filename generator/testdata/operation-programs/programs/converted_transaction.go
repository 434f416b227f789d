package program

import (
	"context"

	"example.com/events"
)

// Nor can it be converted.
func program(ctx context.Context, tx *events.StartTurnTx, p events.TurnFinalized) (events.FinalizeTurnOutcome, error) {
	return (*events.FinalizeTurnTx)(tx).Settled(ctx, p) // error: cannot convert tx
}
