package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleKeyedOnce handles one catalog/keyed_once event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleKeyedOnce(ctx context.Context, d outbox.Delivery[KeyedOnce]) error {
	return outbox.Unimplemented("catalog/keyed_once")
}
