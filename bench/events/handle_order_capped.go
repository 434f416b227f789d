package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderCapped does the work that is measured.
func (h *BenchLimitsHandler) HandleOrderCapped(ctx context.Context, d outbox.Delivery[OrderCapped]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
