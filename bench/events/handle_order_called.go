package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderCalled does the work that is measured.
func (h *BenchLimitsHandler) HandleOrderCalled(ctx context.Context, d outbox.Delivery[OrderCalled]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
