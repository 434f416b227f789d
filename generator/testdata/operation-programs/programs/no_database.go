package program

import (
	"context"

	"github.com/jackc/pgx/v5"

	"example.com/events"
)

// What begins no transaction is not a database for an operation.
func program(ctx context.Context, batch *pgx.Batch) error {
	return events.FinalizeTurn(ctx, batch, func(_ context.Context, tx *events.FinalizeTurnTx) (events.FinalizeTurnOutcome, error) { // error: *pgx.Batch does not implement operation.Beginner (missing method Begin)
		return tx.Refused(), nil
	})
}
