package events

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/outboxgen/outboxgen/outbox"
)

// HandleTurnStarted adds the turn to the list of its tenant. The insert needs no guard against a repeat, because the cursor
// of the listener advances in the same transaction.
func (h *ActivityHandler) HandleTurnStarted(ctx context.Context, tx pgx.Tx, d outbox.Delivery[TurnStarted]) error {
	_, err := tx.Exec(ctx, "INSERT INTO activity (tenant_id, turn_id, event_id) VALUES ($1, $2, $3)",
		d.Payload.TenantID, d.Payload.TurnID, d.ID)
	return err
}
