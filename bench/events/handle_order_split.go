package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderSplit does the work that is measured.
func (h *BenchLimitsHandler) HandleOrderSplit(ctx context.Context, d outbox.Delivery[OrderSplit]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
