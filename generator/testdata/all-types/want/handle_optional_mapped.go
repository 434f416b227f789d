package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOptionalMapped handles one catalog/optional_mapped event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleOptionalMapped(ctx context.Context, d outbox.Delivery[OptionalMapped]) error {
	return outbox.Unimplemented("catalog/optional_mapped")
}
