package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderReturned does the work that is measured.
func (h *BenchTenantsHandler) HandleOrderReturned(ctx context.Context, d outbox.Delivery[OrderReturned]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
