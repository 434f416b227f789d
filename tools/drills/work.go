package main

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/worker"
)

// lease is short, so that a drill that loses a worker need not wait for half a minute.
const lease = 6 * time.Second

// effects are what the handlers do: lines in files, which nobody can take back, and rows in the consumer's database, of
// which the inbox makes one per event.
type effects struct {
	delivered, heard record
	consumer         *pgxpool.Pool // nil without an inbox
	billing, stock   *inbox.Inbox
}

func (e *effects) onPlaced(ctx context.Context, d outbox.Delivery[Order]) error {
	if e.consumer != nil {
		if err := pgx.BeginFunc(ctx, e.consumer, func(tx pgx.Tx) error { return e.consume(ctx, tx, d) }); err != nil {
			return err
		}
	}
	return e.delivered.add(d.Payload.ID.String())
}

// consume bills an order, once per event, and keeps the latest order of each item, by its version.
func (e *effects) consume(ctx context.Context, tx pgx.Tx, d outbox.Delivery[Order]) error {
	if _, err := e.billing.Once(ctx, tx, d.ID, func(ctx context.Context) error {
		_, err := tx.Exec(ctx, "INSERT INTO billed (order_id) VALUES ($1)", d.Payload.ID)
		return err
	}); err != nil {
		return err
	}
	event := inbox.Event{
		ID: d.ID, Source: "/shop", EntityType: "item", EntityID: strconv.Itoa(d.Payload.Item), Version: d.Payload.Version,
	}
	_, err := e.stock.Apply(ctx, tx, event, func(ctx context.Context) error {
		_, err := tx.Exec(ctx, `INSERT INTO stock (item, latest) VALUES ($1, $2)
			ON CONFLICT (item) DO UPDATE SET latest = excluded.latest`, d.Payload.Item, d.Payload.ID)
		return err
	})
	return err
}

func (e *effects) onShown(_ context.Context, d outbox.Delivery[Order]) error {
	return e.heard.add(d.Payload.ID.String())
}

// work delivers the events of the shop until ctx ends.
func work(ctx context.Context, o options) error {
	pool, err := connect(ctx, o.db, 16)
	if err != nil {
		return err
	}
	defer pool.Close()
	var e effects
	if e.delivered, err = openRecord(o.dir, "delivered"); err != nil {
		return err
	}
	if e.heard, err = openRecord(o.dir, "heard"); err != nil {
		return err
	}
	if o.inbox != "" {
		if e.consumer, err = connect(ctx, o.inbox, 10); err != nil {
			return err
		}
		defer e.consumer.Close()
		if e.billing, err = inbox.New(inbox.Config{Group: "billing"}); err != nil {
			return err
		}
		if e.stock, err = inbox.New(inbox.Config{Group: "stock"}); err != nil {
			return err
		}
	}
	wake := outbox.WakeDoorbell
	if o.poll {
		wake = outbox.WakePoll
	}
	var listen *pgxpool.Pool
	if o.listen != "" {
		if listen, err = connect(ctx, o.listen, 2); err != nil {
			return err
		}
		defer listen.Close()
	}
	d, err := queue.NewDispatcher(pool, queue.Config{LeaseDuration: lease, Wake: wake, ListenPool: listen},
		queue.Handle(placed, &e, e.onPlaced))
	if err != nil {
		return err
	}
	l, err := listener.New(pool, listener.Spec{Name: "screen", Lease: lease},
		listener.Config{Wake: wake, ListenPool: listen}, listener.Handle(shown, &e, e.onShown))
	if err != nil {
		return err
	}
	w, err := worker.New(worker.Part{Name: "shop", Runner: d}, worker.Part{Name: "screen", Runner: l})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}
