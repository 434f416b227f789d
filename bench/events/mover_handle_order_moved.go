package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderMoved does the work that is measured.
func (h *MoverHandler) HandleOrderMoved(ctx context.Context, d outbox.Delivery[OrderMoved]) error {
	h.Work(ctx, d.Payload.Seq)
	return nil
}
