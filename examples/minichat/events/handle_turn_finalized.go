package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleTurnFinalized writes the usage of the turn to the ledger. The ledger has one entry per
// tenant, turn and request, so a second delivery of the event changes nothing.
func (h *MiniChatHandler) HandleTurnFinalized(ctx context.Context, d outbox.Delivery[TurnFinalized]) error {
	return h.Ledger.Record(ctx, d.ID, d.Payload)
}
