package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleMapsInMaps handles one catalog/maps_in_maps event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CatalogHandler) HandleMapsInMaps(ctx context.Context, d outbox.Delivery[MapsInMaps]) error {
	return outbox.Unimplemented("catalog/maps_in_maps")
}
