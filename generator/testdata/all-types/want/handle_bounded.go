package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleBounded handles one catalog/bounded event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleBounded(ctx context.Context, d outbox.Delivery[Bounded]) error {
	return outbox.Unimplemented("catalog/bounded")
}
