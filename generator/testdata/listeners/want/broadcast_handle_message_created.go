package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMessageCreated handles one threads/message_created event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *BroadcastHandler) HandleMessageCreated(ctx context.Context, d outbox.Delivery[MessageCreated]) error {
	return outbox.Unimplemented("threads/message_created")
}
