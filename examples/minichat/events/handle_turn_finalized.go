package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleTurnFinalized writes the usage of the turn into the ledger. The id of the event makes it
// idempotent: the second delivery of an event finds the entry of the first.
func (h *MiniChatHandler) HandleTurnFinalized(ctx context.Context, d outbox.Delivery[TurnFinalized]) error {
	return h.Ledger.Record(ctx, d.ID, d.Payload)
}
