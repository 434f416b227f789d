package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleFinalized handles one chat/finalized event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *ChatHandler) HandleFinalized(ctx context.Context, d outbox.Delivery[Finalized]) error {
	return outbox.Unimplemented("chat/finalized")
}
