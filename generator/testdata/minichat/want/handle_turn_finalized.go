package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleTurnFinalized handles one mini_chat/turn_finalized event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *MiniChatHandler) HandleTurnFinalized(ctx context.Context, d outbox.Delivery[TurnFinalized]) error {
	return outbox.Unimplemented("mini_chat/turn_finalized")
}
