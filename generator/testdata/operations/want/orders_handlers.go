package events

// OrdersHandler handles the events of namespace orders.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type OrdersHandler struct{}

var _ OrdersHandlers = (*OrdersHandler)(nil)
