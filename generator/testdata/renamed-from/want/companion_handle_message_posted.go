package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMessagePosted handles one threads/message_posted event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CompanionHandler) HandleMessagePosted(ctx context.Context, d outbox.Delivery[MessagePosted]) error {
	return outbox.Unimplemented("threads/message_posted")
}
