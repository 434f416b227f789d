package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleReplyRequested makes the companion answer a message. The id of the event is the id of the job.
func (h *RepliesHandler) HandleReplyRequested(ctx context.Context, d outbox.Delivery[ReplyRequested]) error {
	return h.Companion.Reply(ctx, d.ID, d.Payload)
}
