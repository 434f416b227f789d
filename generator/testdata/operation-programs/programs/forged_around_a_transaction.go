package program

import (
	"context"

	"github.com/jackc/pgx/v5"

	"example.com/events"
)

// A transaction of the program's own is not one of an operation.
func program(ctx context.Context, tx pgx.Tx, p events.TurnFinalized) (events.FinalizeTurnOutcome, error) {
	forged := &events.FinalizeTurnTx{Tx: tx} // error: cannot use tx
	return forged.Settled(ctx, p)
}
