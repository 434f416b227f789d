package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleThreadClosed handles one threads/thread_closed event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *ThreadsHandler) HandleThreadClosed(ctx context.Context, d outbox.Delivery[ThreadClosed]) error {
	return outbox.Unimplemented("threads/thread_closed")
}
