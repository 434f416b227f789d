package events

import "context"

// Shipping books shipments of orders. Book is called again if an event is delivered again, and must then change
// nothing.
type Shipping interface {
	Book(ctx context.Context, o OrderCreated) error
}

// OrdersHandler handles the events of namespace orders. Its methods run concurrently.
type OrdersHandler struct {
	Shipping Shipping
}

var _ OrdersHandlers = (*OrdersHandler)(nil)
