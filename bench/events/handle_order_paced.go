package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderPaced does the work that is measured.
func (h *BenchLimitsHandler) HandleOrderPaced(ctx context.Context, d outbox.Delivery[OrderPaced]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
