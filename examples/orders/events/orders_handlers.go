package events

import "context"

// Shipping is told of orders to ship. Book is called again when an event is delivered again, and must
// then change nothing.
type Shipping interface {
	Book(ctx context.Context, o OrderCreated) error
}

// OrdersHandler handles the events of namespace orders. Its methods run concurrently.
type OrdersHandler struct {
	Shipping Shipping
}

var _ OrdersHandlers = (*OrdersHandler)(nil)
