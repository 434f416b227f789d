package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleListed handles one catalog/listed event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleListed(ctx context.Context, d outbox.Delivery[Listed]) error {
	return outbox.Unimplemented("catalog/listed")
}
