package shop

// OrdersHandler handles the events of namespace orders.
// Give it the fields that its methods need, such as a pool; they run concurrently and share them.
type OrdersHandler struct{}

var _ OrdersHandlers = (*OrdersHandler)(nil)
