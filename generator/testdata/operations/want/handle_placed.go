package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandlePlaced handles one orders/placed event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *OrdersHandler) HandlePlaced(ctx context.Context, d outbox.Delivery[Placed]) error {
	return outbox.Unimplemented("orders/placed")
}
