// Package shipping books shipments of orders with the carrier.
package shipping

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/orders/events"
)

// Desk books shipments. Any number of goroutines may use it concurrently.
type Desk struct {
	pool *pgxpool.Pool
}

var _ events.Shipping = (*Desk)(nil)

// NewDesk returns a desk in the database of pool. The caller closes pool.
func NewDesk(pool *pgxpool.Pool) *Desk { return &Desk{pool: pool} }

// Book books the shipment of an order in its own transaction. It does not change an existing shipment, because an
// event may be delivered more than once.
func (d *Desk) Book(ctx context.Context, o events.OrderCreated) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		return insertShipment(ctx, tx, o)
	})
}

func insertShipment(ctx context.Context, tx pgx.Tx, o events.OrderCreated) error {
	var pieces int32
	for _, l := range o.Lines {
		pieces += l.Quantity
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO shop.shipments (order_id, shop_id, ship_to, pieces)
		VALUES ($1, $2, $3, $4)
		ON CONFLICT (order_id) DO NOTHING`,
		o.OrderID, o.ShopID, o.ShipTo, pieces)
	if err != nil {
		return fmt.Errorf("book shipment of order %s: %w", o.OrderID, err)
	}
	return nil
}
