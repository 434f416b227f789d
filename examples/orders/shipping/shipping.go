// Package shipping books what has been ordered with the carrier.
package shipping

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Shipment is one parcel to one address.
type Shipment struct {
	OrderID uuid.UUID
	ShopID  uuid.UUID
	ShipTo  string
	Pieces  int32
}

// Book writes s with tx. An order that has its shipment is left alone, because the event that asks for
// it may be delivered more than once.
func Book(ctx context.Context, tx pgx.Tx, s Shipment) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO shop.shipments (order_id, shop_id, ship_to, pieces)
		VALUES ($1, $2, $3, $4)
		ON CONFLICT (order_id) DO NOTHING`,
		s.OrderID, s.ShopID, s.ShipTo, s.Pieces)
	if err != nil {
		return fmt.Errorf("book shipment: %w", err)
	}
	return nil
}
