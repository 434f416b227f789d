package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOptionalListed handles one catalog/optional_listed event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleOptionalListed(ctx context.Context, d outbox.Delivery[OptionalListed]) error {
	return outbox.Unimplemented("catalog/optional_listed")
}
