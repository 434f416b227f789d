package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderBilled does the work that is measured.
func (h *BenchTenantsHandler) HandleOrderBilled(ctx context.Context, d outbox.Delivery[OrderBilled]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
