package program

import (
	"context"
	"database/sql"

	"example.com/events"
)

// Nor is a *sql.DB, and a *sql.Tx has to be wrapped.
func program(ctx context.Context, db *sql.DB, tx *sql.Tx, p events.TurnFinalized) error {
	_, err := events.EnqueueTurnFinalized(ctx, db, p) // error: *sql.DB does not implement outbox.Tx (missing method Commit)
	if err == nil {
		_, err = events.EnqueueTurnFinalized(ctx, tx, p) // error: *sql.Tx does not implement outbox.Tx (wrong type for method Commit)
	}
	return err
}
