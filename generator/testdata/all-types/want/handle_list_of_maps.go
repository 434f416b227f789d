package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleListOfMaps handles one catalog/list_of_maps event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CatalogHandler) HandleListOfMaps(ctx context.Context, d outbox.Delivery[ListOfMaps]) error {
	return outbox.Unimplemented("catalog/list_of_maps")
}
