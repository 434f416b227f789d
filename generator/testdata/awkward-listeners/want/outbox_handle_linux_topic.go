package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleLinux handles one companion/linux event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *OutboxHandler) HandleLinux(ctx context.Context, d outbox.Delivery[Linux]) error {
	return outbox.Unimplemented("companion/linux")
}
