package outbox

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleHandlers handles one handle_init/handlers event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *HandleInitHandler) HandleHandlers(ctx context.Context, d outbox.Delivery[Handlers]) error {
	return outbox.Unimplemented("handle_init/handlers")
}
