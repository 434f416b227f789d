package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleNestedMap handles one catalog/nested_map event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CatalogHandler) HandleNestedMap(ctx context.Context, d outbox.Delivery[NestedMap]) error {
	return outbox.Unimplemented("catalog/nested_map")
}
