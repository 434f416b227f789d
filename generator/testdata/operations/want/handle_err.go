package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleErr handles one stock/err event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *StockHandler) HandleErr(ctx context.Context, d outbox.Delivery[Err]) error {
	return outbox.Unimplemented("stock/err")
}
