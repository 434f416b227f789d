package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMessageCreated handles one threads/message_created event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *BroadcastHandler) HandleMessageCreated(ctx context.Context, d outbox.Delivery[MessageCreated]) error {
	return outbox.Unimplemented("threads/message_created")
}
