package shop

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/formats/events"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// Send hands a message to a broker and waits until the broker has it.
type Send func(ctx context.Context, destination string, m publish.Message) error

// bus is the publisher of the shop: a broker of its own, which the YAML names bus.
type bus struct{ send Send }

// Publish implements publish.Publisher.
func (b bus) Publish(ctx context.Context, all []publish.Outgoing) []error {
	return publish.Each(ctx, all, 8, func(ctx context.Context, o publish.Outgoing) error {
		m, err := publish.Encoder(Encode).Encode(o)
		if err != nil {
			return err
		}
		return b.send(ctx, o.Destination, m)
	})
}

// NewDispatcher returns the dispatcher of the shop's events, which hands them to send.
func NewDispatcher(pool *pgxpool.Pool, send Send, cfg queue.Config) (*queue.Dispatcher, error) {
	cfg.Publishers = map[string]publish.Publisher{"bus": bus{send}}
	return events.NewOrdersDispatcher(pool, cfg)
}

// PlaceAndShip places an order with one article and ships it, with an event for each.
func PlaceAndShip(ctx context.Context, pool *pgxpool.Pool, id uuid.UUID, customer string, cents int64) error {
	now := time.Now().UTC().Truncate(time.Microsecond) // what Avro's timestamp-micros keeps
	tracking := "T-" + id.String()[:8]
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// The rows of the order would be written here.
		_, err := events.EnqueueOrderPlaced(ctx, tx, events.OrderPlaced{
			OrderID: id, Customer: customer, TotalCents: cents, Lines: []events.Line{{Article: "lamp", Quantity: 2}}, PlacedAt: now,
		})
		if err != nil {
			return err
		}
		_, err = events.EnqueueOrderShipped(ctx, tx, events.OrderShipped{
			OrderID: id, Parcel: 1, Carrier: "post", Tracking: &tracking, ShippedAt: now,
		})
		return err
	})
}
