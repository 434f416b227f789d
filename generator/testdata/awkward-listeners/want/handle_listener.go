package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleListener handles one companion/listener event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CompanionHandler) HandleListener(ctx context.Context, d outbox.Delivery[Listener]) error {
	return outbox.Unimplemented("companion/listener")
}
