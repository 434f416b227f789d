package program

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/events"
)

// A pool is not a transaction: the event would commit without the business rows.
func program(ctx context.Context, pool *pgxpool.Pool, p events.TurnFinalized) error {
	_, err := events.EnqueueTurnFinalized(ctx, pool, p) // error: *pgxpool.Pool does not implement outbox.Tx (missing method Commit)
	return err
}
