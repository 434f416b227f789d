// Package order takes orders. An order and its event are written in one transaction, so either both exist or
// neither does.
package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/examples/orders/events"
	"github.com/outboxgen/outboxgen/operation"
)

// ErrKeyReused says that the client key was used before, for an order with different contents.
var ErrKeyReused = errors.New("client key belongs to another order")

// Request is the request of a client. A second Request with the same ClientKey is the same order.
type Request struct {
	ShopID    uuid.UUID
	ClientKey string
	Lines     []Line
	ShipTo    string
}

// Line is one article of an order.
type Line struct {
	SKU        string
	Quantity   int32
	PriceCents int64
}

// Order is a Request that was taken.
type Order struct {
	Request
	ID         uuid.UUID
	TotalCents int64
	CreatedAt  time.Time
}

// Create writes an order and its event in a transaction of db, and reports true. If an order with the client key of r
// exists, Create writes nothing and returns that order and false, or ErrKeyReused if the contents differ. If an open
// transaction has used the key, Create waits for the end of that transaction. If db is a transaction, the order is taken when
// that commits.
func Create(ctx context.Context, db operation.Beginner, r Request) (o Order, isNew bool, err error) {
	err = events.CreateOrder(ctx, db, func(ctx context.Context, tx *events.CreateOrderTx) (events.CreateOrderOutcome, error) {
		o, isNew, err = insert(ctx, tx, r)
		if err != nil {
			return events.CreateOrderOutcome{}, err
		}
		if !isNew {
			return tx.Repeated(), nil
		}
		outcome, err := tx.Created(ctx, created(o))
		if err != nil {
			return outcome, err
		}
		if receipt := outcome.Receipts()[0]; receipt.Duplicate {
			// Orders are kept longer than their events, so somebody has deleted this order by hand.
			return outcome, fmt.Errorf("create order: event %s exists without its order", receipt.ID)
		}
		return outcome, nil
	})
	if err != nil {
		return Order{}, false, err
	}
	return o, isNew, nil
}

// insert writes the order of r and reports true, or returns the existing one with the client key of r.
func insert(ctx context.Context, tx pgx.Tx, r Request) (Order, bool, error) {
	o := Order{Request: r, ID: uuid.New()}
	for _, l := range r.Lines {
		o.TotalCents += int64(l.Quantity) * l.PriceCents
	}
	err := tx.QueryRow(ctx, `
		INSERT INTO shop.orders (id, shop_id, client_key, lines, total_cents, ship_to)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (shop_id, client_key) DO NOTHING
		RETURNING created_at`,
		o.ID, o.ShopID, o.ClientKey, o.Lines, o.TotalCents, o.ShipTo).Scan(&o.CreatedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		o, err = repeated(ctx, tx, r)
		return o, false, err
	}
	if err != nil {
		return Order{}, false, fmt.Errorf("insert order: %w", err)
	}
	return o, true, nil
}

// repeated returns the existing order with the client key of r.
func repeated(ctx context.Context, tx pgx.Tx, r Request) (Order, error) {
	o := Order{Request: Request{ShopID: r.ShopID, ClientKey: r.ClientKey}}
	err := tx.QueryRow(ctx, `
		SELECT id, lines, total_cents, ship_to, created_at
		FROM shop.orders
		WHERE shop_id = $1 AND client_key = $2`,
		r.ShopID, r.ClientKey).Scan(&o.ID, &o.Lines, &o.TotalCents, &o.ShipTo, &o.CreatedAt)
	if err != nil {
		return Order{}, fmt.Errorf("read order: %w", err)
	}
	if !slices.Equal(o.Lines, r.Lines) || o.ShipTo != r.ShipTo {
		return Order{}, fmt.Errorf("create order: %w", ErrKeyReused)
	}
	return o, nil
}

// created returns the event of o. The payload has its own types, so that a change of the domain does not change the
// event by accident.
func created(o Order) events.OrderCreated {
	p := events.OrderCreated{
		ShopID:     o.ShopID,
		OrderID:    o.ID,
		ClientKey:  o.ClientKey,
		TotalCents: o.TotalCents,
		ShipTo:     o.ShipTo,
		CreatedAt:  o.CreatedAt,
	}
	for _, l := range o.Lines {
		p.Lines = append(p.Lines, events.Line(l))
	}
	return p
}
