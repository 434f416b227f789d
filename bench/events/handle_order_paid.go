package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderPaid does the work that is measured.
func (h *BenchHandler) HandleOrderPaid(ctx context.Context, d outbox.Delivery[OrderPaid]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
