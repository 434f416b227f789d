package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderPlaced handles one shop/order_placed event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *ShopHandler) HandleOrderPlaced(ctx context.Context, d outbox.Delivery[OrderPlaced]) error {
	return outbox.Unimplemented("shop/order_placed")
}
