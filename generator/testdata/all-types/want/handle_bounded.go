package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleBounded handles one catalog/bounded event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CatalogHandler) HandleBounded(ctx context.Context, d outbox.Delivery[Bounded]) error {
	return outbox.Unimplemented("catalog/bounded")
}
