package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderCreated handles one orders/created event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *OrdersHandler) HandleOrderCreated(ctx context.Context, d outbox.Delivery[OrderCreated]) error {
	return outbox.Unimplemented("orders/created")
}
