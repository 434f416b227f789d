package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleListOfMaps handles one catalog/list_of_maps event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleListOfMaps(ctx context.Context, d outbox.Delivery[ListOfMaps]) error {
	return outbox.Unimplemented("catalog/list_of_maps")
}
