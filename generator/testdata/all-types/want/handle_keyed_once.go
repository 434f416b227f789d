package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleKeyedOnce handles one catalog/keyed_once event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *CatalogHandler) HandleKeyedOnce(ctx context.Context, d outbox.Delivery[KeyedOnce]) error {
	return outbox.Unimplemented("catalog/keyed_once")
}
