package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderShipped does the work that is measured.
func (h *BenchTenantsHandler) HandleOrderShipped(ctx context.Context, d outbox.Delivery[OrderShipped]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
