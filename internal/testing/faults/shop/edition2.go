package shop

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/testing/faults/orders2"
	"github.com/outboxgen/outboxgen/outbox"
)

var edition2 = edition{
	enqueue: enqueue2,
	dispatcher: func(pool *pgxpool.Pool, w *work) (runner, error) {
		return orders2.NewShopDispatcher(pool, handlers2{w}, w.queue())
	},
	listeners: []part{
		{"ledger", func(pool *pgxpool.Pool, w *work) (runner, error) {
			return orders2.NewLedgerListener(pool, handlersTx2{w}, w.listener())
		}},
		{"screen", func(pool *pgxpool.Pool, w *work) (runner, error) {
			return orders2.NewScreenListener(pool, screen2{w}, w.listener())
		}},
		{"to_kafka", func(pool *pgxpool.Pool, w *work) (runner, error) {
			return orders2.NewToKafkaListener(pool, w.relay())
		}},
		{"to_nats", func(pool *pgxpool.Pool, w *work) (runner, error) {
			return orders2.NewToNatsListener(pool, w.relay())
		}},
		{"to_webhook", func(pool *pgxpool.Pool, w *work) (runner, error) {
			return orders2.NewToWebhookListener(pool, w.relay())
		}},
	},
}

// enqueue2 writes events of one topic.
func enqueue2(ctx context.Context, tx outbox.Tx, topic string, es []written, opts ...outbox.EnqueueOption) ([]outbox.Receipt, error) {
	switch topic {
	case OrderPlaced:
		return orders2.OrderPlacedTopic.EnqueueMany(ctx, tx, payloads(es, func(e written) orders2.OrderPlaced {
			return orders2.OrderPlaced{TenantID: e.tenant, Item: e.item, N: e.n, Mood: e.mood, Unit: "crate"}
		}), opts...)
	case ReminderDue:
		return orders2.ReminderDueTopic.EnqueueMany(ctx, tx, payloads(es, func(e written) orders2.ReminderDue {
			return orders2.ReminderDue{TenantID: e.tenant, Item: e.item, N: e.n, Mood: e.mood}
		}), opts...)
	case StockMoved:
		return orders2.StockMovedTopic.EnqueueMany(ctx, tx, payloads(es, func(e written) orders2.StockMoved {
			return orders2.StockMoved{TenantID: e.tenant, Item: e.item, N: e.n, Mood: e.mood, Unit: "crate"}
		}), opts...)
	case ParcelSent:
		return orders2.ParcelSentTopic.EnqueueMany(ctx, tx, payloads(es, func(e written) orders2.ParcelSent {
			return orders2.ParcelSent{TenantID: e.tenant, Item: e.item, N: e.n, Mood: e.mood}
		}), opts...)
	case InvoiceSent:
		return orders2.InvoiceSentTopic.EnqueueMany(ctx, tx, payloads(es, func(e written) orders2.InvoiceSent {
			return orders2.InvoiceSent{TenantID: e.tenant, Item: e.item, N: e.n, Mood: e.mood}
		}), opts...)
	}
	return nil, fmt.Errorf("no topic %s", topic)
}

// handlers2 handles the events of queue topics.
type handlers2 struct{ w *work }

func (h handlers2) HandleOrderPlaced(ctx context.Context, d outbox.Delivery[orders2.OrderPlaced]) error {
	return h.w.handle(ctx, "orders", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

func (h handlers2) HandleReminderDue(ctx context.Context, d outbox.Delivery[orders2.ReminderDue]) error {
	return h.w.handle(ctx, "reminders", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

// screen2 is the listener that is leased.
type screen2 struct{ w *work }

func (h screen2) HandleStockMoved(ctx context.Context, d outbox.Delivery[orders2.StockMoved]) error {
	return h.w.handle(ctx, "screen", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

func (h screen2) HandleParcelSent(ctx context.Context, d outbox.Delivery[orders2.ParcelSent]) error {
	return h.w.handle(ctx, "screen", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

func (h screen2) HandleInvoiceSent(ctx context.Context, d outbox.Delivery[orders2.InvoiceSent]) error {
	return h.w.handle(ctx, "screen", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

// handlersTx2 is the listener that is transactional.
type handlersTx2 struct{ w *work }

func (h handlersTx2) HandleStockMoved(ctx context.Context, tx pgx.Tx, d outbox.Delivery[orders2.StockMoved]) error {
	return h.w.apply(ctx, tx, "ledger", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}
