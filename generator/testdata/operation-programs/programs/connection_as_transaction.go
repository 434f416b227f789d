package program

import (
	"context"

	"github.com/jackc/pgx/v5"

	"example.com/events"
)

// Nor is a connection.
func program(ctx context.Context, conn *pgx.Conn, p events.TurnFinalized) error {
	_, err := events.EnqueueTurnFinalized(ctx, conn, p) // error: *pgx.Conn does not implement outbox.Tx (missing method Commit)
	return err
}
