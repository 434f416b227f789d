package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderDropped does the work that is measured.
func (h *BenchDropHandler) HandleOrderDropped(ctx context.Context, d outbox.Delivery[OrderDropped]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
