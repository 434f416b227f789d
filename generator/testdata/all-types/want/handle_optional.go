package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOptional handles one catalog/optional event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CatalogHandler) HandleOptional(ctx context.Context, d outbox.Delivery[Optional]) error {
	return outbox.Unimplemented("catalog/optional")
}
