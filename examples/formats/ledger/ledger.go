package ledger

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/examples/formats/events/orderevents"
	"github.com/outboxgen/outboxgen/examples/formats/orderpb"
	"github.com/outboxgen/outboxgen/examples/formats/ordersavro"
	"github.com/outboxgen/outboxgen/inbox"
)

// Tables creates the ledger.
//
//go:embed 0001_ledger.sql
var Tables string

// NewConsumer returns the consumer of the ledger. It reads Protobuf, Avro and JSON, so that the shop can change from one to the
// other at any time.
func NewConsumer() (*consume.Consumer, error) {
	ib, err := inbox.New(inbox.Config{Group: "ledger"})
	if err != nil {
		return nil, err
	}
	c, err := orderevents.NewOrdersConsumer(ib, ledger{})
	if err != nil {
		return nil, err
	}
	return c.WithDecoder(orderpb.ContentType, decodeProtobuf).WithDecoder(ordersavro.ContentType, decodeAvro), nil
}

// ledger applies the events to the table.
type ledger struct{}

var _ orderevents.OrdersConsumer = ledger{}

// ConsumeOrderPlaced implements orderevents.OrdersConsumer.
func (ledger) ConsumeOrderPlaced(ctx context.Context, tx pgx.Tx, e consume.Delivery[orderevents.OrderPlaced]) error {
	p := e.Payload
	_, err := tx.Exec(ctx, `INSERT INTO ledger.orders (order_id, customer, total_cents, placed_at) VALUES ($1, $2, $3, $4)
		ON CONFLICT (order_id) DO UPDATE SET customer = $2, total_cents = $3, placed_at = $4`, p.OrderID, p.Customer, p.TotalCents, p.PlacedAt)
	return err
}

// ConsumeOrderShipped implements orderevents.OrdersConsumer. The event may come before that of the order.
func (ledger) ConsumeOrderShipped(ctx context.Context, tx pgx.Tx, e consume.Delivery[orderevents.OrderShipped]) error {
	p := e.Payload
	_, err := tx.Exec(ctx, `INSERT INTO ledger.orders (order_id, tracking, shipped_at) VALUES ($1, $2, $3)
		ON CONFLICT (order_id) DO UPDATE SET tracking = $2, shipped_at = $3`, p.OrderID, p.Tracking, p.ShippedAt)
	return err
}
