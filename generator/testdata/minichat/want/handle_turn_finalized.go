package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleTurnFinalized handles one mini_chat/turn_finalized event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *MiniChatHandler) HandleTurnFinalized(ctx context.Context, d outbox.Delivery[TurnFinalized]) error {
	return outbox.Unimplemented("mini_chat/turn_finalized")
}
