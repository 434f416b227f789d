package program

import (
	"context"

	"example.com/events"

	"github.com/outboxgen/outboxgen/operation"
)

// The function only returns an error, as that of pgx.BeginFunc does.
func program(ctx context.Context, db operation.Beginner) error {
	return events.FinalizeTurn(ctx, db, func(ctx context.Context, tx *events.FinalizeTurnTx) error { // error: cannot use (func(ctx context.Context, tx *events.FinalizeTurnTx) error literal)
		return nil
	})
}
