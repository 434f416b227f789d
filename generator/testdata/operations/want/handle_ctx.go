package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleCtx handles one stock/ctx event.
// It may run more than once per event, so its effects must be idempotent. Until it is written, the events of
// the topic wait, no attempt is charged, and the log says so at level ERROR.
func (h *StockHandler) HandleCtx(ctx context.Context, d outbox.Delivery[Ctx]) error {
	return outbox.Unimplemented("stock/ctx")
}
