package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOptional handles one catalog/optional event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleOptional(ctx context.Context, d outbox.Delivery[Optional]) error {
	return outbox.Unimplemented("catalog/optional")
}
