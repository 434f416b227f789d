package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleTurnStarted shows the members of the chat that an answer is being written.
func (h *TypingHandler) HandleTurnStarted(ctx context.Context, d outbox.Delivery[TurnStarted]) error {
	return h.Members.ShowTyping(ctx, d.ID, d.Payload)
}
