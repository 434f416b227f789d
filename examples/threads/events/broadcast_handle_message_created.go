package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMessageCreated pushes the message to the clients that watch its thread.
func (h *BroadcastHandler) HandleMessageCreated(ctx context.Context, d outbox.Delivery[MessageCreated]) error {
	return h.Clients.Push(ctx, d.Payload)
}
