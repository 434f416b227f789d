package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderCancelled handles one orders/cancelled event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *OrdersHandler) HandleOrderCancelled(ctx context.Context, d outbox.Delivery[OrderCancelled]) error {
	return outbox.Unimplemented("orders/cancelled")
}
