package program

import (
	"context"

	"github.com/jackc/pgx/v5"

	"example.com/events"

	"github.com/outboxgen/outboxgen/outbox"
)

// A transaction of an operation cannot be made from another one.
func program(ctx context.Context, tx pgx.Tx, o *outbox.Operation, p events.TurnFinalized) (events.FinalizeTurnOutcome, error) {
	forged := &events.FinalizeTurnTx{Tx: tx, finalizeTurnOperation: o} // error: unexported field finalizeTurnOperation
	return forged.Settled(ctx, p)
}
