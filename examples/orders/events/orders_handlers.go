package events

import "github.com/jackc/pgx/v5/pgxpool"

// OrdersHandler handles the events of namespace orders.
type OrdersHandler struct {
	Pool *pgxpool.Pool
}

var _ OrdersHandlers = (*OrdersHandler)(nil)
