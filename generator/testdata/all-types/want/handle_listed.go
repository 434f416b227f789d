package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleListed handles one catalog/listed event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CatalogHandler) HandleListed(ctx context.Context, d outbox.Delivery[Listed]) error {
	return outbox.Unimplemented("catalog/listed")
}
