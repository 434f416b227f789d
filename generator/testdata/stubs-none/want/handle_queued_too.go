package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleQueuedToo handles one other/queued_too event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *OtherHandler) HandleQueuedToo(ctx context.Context, d outbox.Delivery[QueuedToo]) error {
	return outbox.Unimplemented("other/queued_too")
}
