package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandlePaid handles one orders/paid event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *OrdersHandler) HandlePaid(ctx context.Context, d outbox.Delivery[Paid]) error {
	return outbox.Unimplemented("orders/paid")
}
