package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOptionalListed handles one catalog/optional_listed event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CatalogHandler) HandleOptionalListed(ctx context.Context, d outbox.Delivery[OptionalListed]) error {
	return outbox.Unimplemented("catalog/optional_listed")
}
