package alltypes

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleDeep handles one catalog/deep event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *CatalogHandler) HandleDeep(ctx context.Context, d outbox.Delivery[Deep]) error {
	return outbox.Unimplemented("catalog/deep")
}
