package events

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/orders/shipping"
	"github.com/outboxgen/outboxgen/outbox"
)

// HandleOrderCreated books the shipment of an order. An event that is delivered again finds it booked.
func (h *OrdersHandler) HandleOrderCreated(ctx context.Context, d outbox.Delivery[OrderCreated]) error {
	s := shipping.Shipment{OrderID: d.Payload.OrderID, ShopID: d.Payload.ShopID, ShipTo: d.Payload.ShipTo}
	for _, l := range d.Payload.Lines {
		s.Pieces += l.Quantity
	}
	return pgx.BeginFunc(ctx, h.Pool, func(tx pgx.Tx) error {
		return shipping.Book(ctx, tx, s)
	})
}
