package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderMailed does the work that is measured.
func (h *BenchLimitsHandler) HandleOrderMailed(ctx context.Context, d outbox.Delivery[OrderMailed]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
