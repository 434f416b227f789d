package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleNestedMap handles one catalog/nested_map event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleNestedMap(ctx context.Context, d outbox.Delivery[NestedMap]) error {
	return outbox.Unimplemented("catalog/nested_map")
}
