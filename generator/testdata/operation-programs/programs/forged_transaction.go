package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// A transaction of an operation cannot be made from another one.
func program(ctx context.Context, tx operation.Tx, o *operation.Operation, p events.TurnFinalized) (events.FinalizeTurnOutcome, error) {
	forged := &events.FinalizeTurnTx{Tx: tx, finalizeTurnOperation: o} // error: unexported field finalizeTurnOperation
	return forged.Settled(ctx, p)
}
