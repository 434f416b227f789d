package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderCreated handles one orders/created event.
// It may run more than once for an event, so its effects must bear repeating. Until it is written it
// returns an error: events are retried, then kept as dead letters.
func (h *OrdersHandler) HandleOrderCreated(ctx context.Context, d outbox.Delivery[OrderCreated]) error {
	return outbox.Unimplemented("orders/created")
}
