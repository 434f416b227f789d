package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOptionalMapped handles one catalog/optional_mapped event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CatalogHandler) HandleOptionalMapped(ctx context.Context, d outbox.Delivery[OptionalMapped]) error {
	return outbox.Unimplemented("catalog/optional_mapped")
}
