package events

import (
	"context"

	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderCreated books the shipment of an order.
func (h *OrdersHandler) HandleOrderCreated(ctx context.Context, d outbox.Delivery[OrderCreated]) error {
	return h.Shipping.Book(ctx, d.Payload)
}
