package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderShipped handles one orders/shipped event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *SearchIndexHandler) HandleOrderShipped(ctx context.Context, d outbox.Delivery[OrderShipped]) error {
	return outbox.Unimplemented("orders/shipped")
}
