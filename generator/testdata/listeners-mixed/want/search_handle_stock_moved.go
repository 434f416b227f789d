package shop

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleStockMoved handles one stock/moved event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *SearchIndexHandler) HandleStockMoved(ctx context.Context, d outbox.Delivery[StockMoved]) error {
	return outbox.Unimplemented("stock/moved")
}
