package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderCancelled handles one orders/cancelled event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *OrdersHandler) HandleOrderCancelled(ctx context.Context, d outbox.Delivery[OrderCancelled]) error {
	return outbox.Unimplemented("orders/cancelled")
}
