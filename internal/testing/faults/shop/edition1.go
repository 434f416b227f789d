package shop

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/testing/faults/orders1"
	"github.com/outboxgen/outboxgen/outbox"
)

var edition1 = edition{
	enqueue: enqueue1,
	dispatcher: func(pool *pgxpool.Pool, w *work) (runner, error) {
		return orders1.NewShopDispatcher(pool, handlers1{w}, w.queue())
	},
	listeners: []part{
		{"ledger", func(pool *pgxpool.Pool, w *work) (runner, error) {
			return orders1.NewLedgerListener(pool, handlersTx1{w}, w.listener())
		}},
		{"screen", func(pool *pgxpool.Pool, w *work) (runner, error) {
			return orders1.NewScreenListener(pool, screen1{w}, w.listener())
		}},
		{"to_kafka", func(pool *pgxpool.Pool, w *work) (runner, error) {
			return orders1.NewToKafkaListener(pool, w.relay())
		}},
		{"to_nats", func(pool *pgxpool.Pool, w *work) (runner, error) {
			return orders1.NewToNatsListener(pool, w.relay())
		}},
		{"to_webhook", func(pool *pgxpool.Pool, w *work) (runner, error) {
			return orders1.NewToWebhookListener(pool, w.relay())
		}},
	},
}

// enqueue1 writes events of one topic.
func enqueue1(ctx context.Context, tx outbox.Tx, topic string, es []written, opts ...outbox.EnqueueOption) ([]outbox.Receipt, error) {
	switch topic {
	case OrderPlaced:
		return orders1.OrderPlacedTopic.EnqueueMany(ctx, tx, payloads(es, func(e written) orders1.OrderPlaced {
			return orders1.OrderPlaced{TenantID: e.tenant, Item: e.item, N: e.n, Mood: e.mood}
		}), opts...)
	case ReminderDue:
		return orders1.ReminderDueTopic.EnqueueMany(ctx, tx, payloads(es, func(e written) orders1.ReminderDue {
			return orders1.ReminderDue{TenantID: e.tenant, Item: e.item, N: e.n, Mood: e.mood}
		}), opts...)
	case StockMoved:
		return orders1.StockMovedTopic.EnqueueMany(ctx, tx, payloads(es, func(e written) orders1.StockMoved {
			return orders1.StockMoved{TenantID: e.tenant, Item: e.item, N: e.n, Mood: e.mood}
		}), opts...)
	case ParcelSent:
		return orders1.ParcelSentTopic.EnqueueMany(ctx, tx, payloads(es, func(e written) orders1.ParcelSent {
			return orders1.ParcelSent{TenantID: e.tenant, Item: e.item, N: e.n, Mood: e.mood}
		}), opts...)
	case InvoiceSent:
		return orders1.InvoiceSentTopic.EnqueueMany(ctx, tx, payloads(es, func(e written) orders1.InvoiceSent {
			return orders1.InvoiceSent{TenantID: e.tenant, Item: e.item, N: e.n, Mood: e.mood}
		}), opts...)
	}
	return nil, fmt.Errorf("no topic %s", topic)
}

// handlers1 handles the events of queue topics.
type handlers1 struct{ w *work }

func (h handlers1) HandleOrderPlaced(ctx context.Context, d outbox.Delivery[orders1.OrderPlaced]) error {
	return h.w.handle(ctx, "orders", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

func (h handlers1) HandleReminderDue(ctx context.Context, d outbox.Delivery[orders1.ReminderDue]) error {
	return h.w.handle(ctx, "reminders", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

// screen1 is the listener that is leased.
type screen1 struct{ w *work }

func (h screen1) HandleStockMoved(ctx context.Context, d outbox.Delivery[orders1.StockMoved]) error {
	return h.w.handle(ctx, "screen", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

func (h screen1) HandleParcelSent(ctx context.Context, d outbox.Delivery[orders1.ParcelSent]) error {
	return h.w.handle(ctx, "screen", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

func (h screen1) HandleInvoiceSent(ctx context.Context, d outbox.Delivery[orders1.InvoiceSent]) error {
	return h.w.handle(ctx, "screen", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}

// handlersTx1 is the listener that is transactional.
type handlersTx1 struct{ w *work }

func (h handlersTx1) HandleStockMoved(ctx context.Context, tx pgx.Tx, d outbox.Delivery[orders1.StockMoved]) error {
	return h.w.apply(ctx, tx, "ledger", received(&d.Event, d.Payload.Item, d.Payload.N, d.Payload.Mood))
}
