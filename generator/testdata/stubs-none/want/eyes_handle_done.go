package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleDone handles one jobs/done event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *EyesHandler) HandleDone(ctx context.Context, d outbox.Delivery[Done]) error {
	return outbox.Unimplemented("jobs/done")
}
