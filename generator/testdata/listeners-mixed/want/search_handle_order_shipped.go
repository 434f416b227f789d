package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderShipped handles one orders/shipped event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *SearchIndexHandler) HandleOrderShipped(ctx context.Context, d outbox.Delivery[OrderShipped]) error {
	return outbox.Unimplemented("orders/shipped")
}
