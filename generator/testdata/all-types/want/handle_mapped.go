package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMapped handles one catalog/mapped event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleMapped(ctx context.Context, d outbox.Delivery[Mapped]) error {
	return outbox.Unimplemented("catalog/mapped")
}
