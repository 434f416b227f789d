package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleNested handles one catalog/nested event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleNested(ctx context.Context, d outbox.Delivery[Nested]) error {
	return outbox.Unimplemented("catalog/nested")
}
