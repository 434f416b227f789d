package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleQueuedToo handles one other/queued_too event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *OtherHandler) HandleQueuedToo(ctx context.Context, d outbox.Delivery[QueuedToo]) error {
	return outbox.Unimplemented("other/queued_too")
}
