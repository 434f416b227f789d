package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// connect opens the pool of the service, like pgxpool.New, on a database with the outbox.
var connect func() *pgxpool.Pool

// OrderPlaced is the payload of a topic.
type OrderPlaced struct {
	OrderID    string `json:"order_id"`
	TotalCents int    `json:"total_cents"`
}

// orderPlaced is the topic shop/order_placed. An order has one event: its id is the dedupe key.
var orderPlaced = outbox.NewTopic[OrderPlaced](outbox.TopicSpec{
	Namespace: "shop", Name: "order_placed",
	Keys: func(p any) outbox.Keys {
		return outbox.Keys{Dedupe: eventkey.NewKey(eventkey.StringPart("order_id", p.(*OrderPlaced).OrderID))}
	},
})

// deliver enqueues the event of order 17, delivers what is due with handle, and returns what happened. A service would have
// one dispatcher, which runs all the time.
func deliver(cfg queue.Config, handle func(context.Context, outbox.Delivery[OrderPlaced]) error) queue.Report {
	ctx := context.Background()
	pool := connect()
	if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := orderPlaced.Enqueue(ctx, tx, OrderPlaced{OrderID: "17", TotalCents: 4200})
		return err
	}); err != nil {
		log.Fatal(err)
	}
	d, err := queue.NewDispatcher(pool, cfg, queue.Handle(orderPlaced, struct{}{}, handle))
	if err != nil {
		log.Fatal(err)
	}
	report, err := d.Drain(ctx)
	if err != nil {
		log.Fatal(err)
	}
	return report
}

// The order and its event are written in one transaction: if it commits, both exist, and if it does not, neither does. From
// YAML, outboxgen generates the payload, the topic, and a function EnqueueOrderPlaced that does what Enqueue does here.
func Example() {
	ctx := context.Background()
	pool := connect()
	if _, err := pool.Exec(ctx, "CREATE TABLE orders (id text PRIMARY KEY, total_cents int NOT NULL)"); err != nil {
		log.Fatal(err)
	}

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		order := OrderPlaced{OrderID: "17", TotalCents: 4200}
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2)", order.OrderID, order.TotalCents); err != nil {
			return err
		}
		_, err := orderPlaced.Enqueue(ctx, tx, order)
		return err
	})
	fmt.Println(err)
	// Output: <nil>
}

// Enqueue needs neither a topic nor generated code. The second event has the dedupe key of the first, so nothing is written.
func ExampleEnqueue() {
	ctx := context.Background()
	pool := connect()

	for range 2 {
		var receipt outbox.Receipt
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
			receipt, err = outbox.Enqueue(ctx, tx, "", outbox.Message{
				Namespace: "shop", Topic: "order_placed", DedupeKey: "17", Payload: []byte(`{"order_id": "17"}`),
			})
			return err
		})
		fmt.Println(receipt.Duplicate, err)
	}
	// Output:
	// false <nil>
	// true <nil>
}

// EnqueueMany writes one event per message. The receipts are in the order of the messages.
func ExampleEnqueueMany() {
	ctx := context.Background()
	pool := connect()

	var receipts []outbox.Receipt
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		receipts, err = outbox.EnqueueMany(ctx, tx, "", []outbox.Message{
			{Namespace: "shop", Topic: "order_placed", DedupeKey: "17", Payload: []byte(`{"order_id": "17"}`)},
			{Namespace: "shop", Topic: "order_placed", DedupeKey: "18", Payload: []byte(`{"order_id": "18"}`)},
		})
		return err
	})
	fmt.Println(len(receipts), err)
	// Output: 2 <nil>
}

// The event shares the round trip of the other statements of the batch. Send the batch in a transaction.
func ExampleEnqueueInBatch() {
	ctx := context.Background()
	pool := connect()

	b := &pgx.Batch{}
	b.Queue("CREATE TABLE orders (id text PRIMARY KEY)")
	pending, err := outbox.EnqueueInBatch(b, "", outbox.Message{
		Namespace: "shop", Topic: "order_placed", DedupeKey: "17", Payload: []byte(`{"order_id": "17"}`),
	})
	if err != nil {
		log.Fatal(err)
	}
	var receipt outbox.Receipt
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		receipt, err = pending.Resolve(ctx, tx) // in this transaction, after Close
		return err
	})
	fmt.Println(receipt.Duplicate, err)
	// Output: false <nil>
}

// A generated topic looks like this one. Its Keys are the columns of an event that come from the payload.
func ExampleNewTopic() {
	type userRenamed struct {
		TenantID uuid.UUID `json:"tenant_id"`
		UserID   string    `json:"user_id"`
		Revision int64     `json:"revision"`
		Name     string    `json:"name"`
	}
	topic := outbox.NewTopic[userRenamed](outbox.TopicSpec{
		Namespace: "accounts", Name: "user_renamed", Version: 1,
		Log: true, // for listeners; a topic of the queue, for a dispatcher, leaves it out
		Keys: func(p any) outbox.Keys {
			e := p.(*userRenamed)
			user := eventkey.NewKey(eventkey.StringPart("user_id", e.UserID))
			return outbox.Keys{
				TenantID:   outbox.Tenant(e.TenantID),
				Partition:  user, // the events of a user are handled in order
				EntityType: "user", EntityID: user, EntityVersion: e.Revision,
			}
		},
	})
	fmt.Println(topic.Untyped(), topic.Untyped().Version())
	// Output: accounts/user_renamed 1
}

// A topic enqueues payloads of its type. The second event has the dedupe key of the first, so nothing is written.
func ExampleTopic_Enqueue() {
	ctx := context.Background()
	pool := connect()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		first, err := orderPlaced.Enqueue(ctx, tx, OrderPlaced{OrderID: "17", TotalCents: 4200})
		if err != nil {
			return err
		}
		second, err := orderPlaced.Enqueue(ctx, tx, OrderPlaced{OrderID: "17", TotalCents: 4200})
		fmt.Println(first.Duplicate, second.Duplicate, first.ID == second.ID)
		return err
	})
	fmt.Println(err)
	// Output:
	// false true true
	// <nil>
}

// An untyped topic takes payloads of the topic's type. Anything else is an error, and the transaction stays usable.
func ExampleUntypedTopic_Enqueue() {
	ctx := context.Background()
	pool := connect()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		topic := orderPlaced.Untyped()
		_, err := topic.Enqueue(ctx, tx, "order 17")
		fmt.Println(err)
		_, err = topic.Enqueue(ctx, tx, &OrderPlaced{OrderID: "17", TotalCents: 4200})
		return err
	})
	fmt.Println(err)
	// Output:
	// enqueue shop/order_placed: the payload is of type string, not outbox_test.OrderPlaced
	// <nil>
}

// One event per payload, with one statement per 1,000. Order 17 occurs twice and has one event.
func ExampleUntypedTopic_EnqueueMany() {
	ctx := context.Background()
	pool := connect()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		receipts, err := orderPlaced.EnqueueMany(ctx, tx, []OrderPlaced{{OrderID: "17"}, {OrderID: "18"}, {OrderID: "17"}})
		for _, r := range receipts {
			fmt.Println(r.Duplicate)
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// false
	// false
	// true
}

// Pass the tenant that the request was authenticated for. The event of another tenant is refused before anything is sent.
func ExampleWithTenant() {
	ctx := context.Background()
	pool := connect()
	type invoiceSent struct {
		TenantID uuid.UUID `json:"tenant_id"`
	}
	topic := outbox.NewTopic[invoiceSent](outbox.TopicSpec{
		Namespace: "billing", Name: "invoice_sent",
		Keys: func(p any) outbox.Keys { return outbox.Keys{TenantID: outbox.Tenant(p.(*invoiceSent).TenantID)} },
	})

	authenticated, other := uuid.New(), uuid.New()
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := topic.Enqueue(ctx, tx, invoiceSent{TenantID: other}, outbox.WithTenant(authenticated))
		return err
	})
	fmt.Println(errors.Is(err, outbox.ErrTenantMismatch))
	// Output: true
}

// A reminder that is due tomorrow, with a header for its handler. Today a dispatcher does not find it.
func ExampleWithNotBefore() {
	ctx := context.Background()
	pool := connect()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := orderPlaced.Enqueue(ctx, tx, OrderPlaced{OrderID: "17"},
			outbox.WithNotBefore(time.Now().Add(24*time.Hour)),
			outbox.WithHeaders(map[string]string{"reason": "reminder"}))
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	store, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	due, err := store.Claim(ctx, queue.ClaimConfig{})
	fmt.Println(len(due), err)
	// Output: 0 <nil>
}

// Mailer handles the events.
type Mailer struct{}

func (Mailer) HandleOrderPlaced(_ context.Context, d outbox.Delivery[OrderPlaced]) error {
	fmt.Println("mail about order", d.Payload.OrderID, "in", d.Headers["locale"])
	return nil
}

// What a handler gets has the metadata of the event, its headers among them.
func ExampleWithHeaders() {
	ctx := context.Background()
	pool := connect()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := orderPlaced.Enqueue(ctx, tx, OrderPlaced{OrderID: "18"},
			outbox.WithHeaders(map[string]string{"locale": "en"}))
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	d, err := queue.NewDispatcher(pool, queue.Config{}, queue.Handle(orderPlaced, Mailer{}, Mailer{}.HandleOrderPlaced))
	if err != nil {
		log.Fatal(err)
	}
	_, err = d.Drain(ctx)
	fmt.Println(err)
	// Output:
	// mail about order 18 in en
	// <nil>
}

// trace returns the active trace of ctx. With OpenTelemetry it would be
//
//	carrier := propagation.MapCarrier{}
//	propagation.TraceContext{}.Inject(ctx, carrier)
//	return carrier["traceparent"], carrier["tracestate"]
func trace(context.Context) (traceparent, tracestate string) {
	return "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", ""
}

// Call ContextWithTrace once, where the contexts of requests are made. Events that are enqueued with such a context have the
// trace in their headers.
func ExampleContextWithTrace() {
	ctx := outbox.ContextWithTrace(context.Background(), trace)
	pool := connect()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := orderPlaced.Enqueue(ctx, tx, OrderPlaced{OrderID: "17"})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	var traceparent string
	err = pool.QueryRow(ctx, "SELECT headers->>'traceparent' FROM outbox.event_status").Scan(&traceparent)
	fmt.Println(traceparent, err)
	// Output: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 <nil>
}

// No retry can fix this order, so its event becomes a dead letter immediately.
func ExamplePermanent() {
	report := deliver(queue.Config{}, func(_ context.Context, d outbox.Delivery[OrderPlaced]) error {
		return outbox.Permanent(fmt.Errorf("order %s was deleted", d.Payload.OrderID))
	})
	fmt.Println(report.Dead)
	// Output: 1
}

// A service that was called has said when to try again.
func ExampleRetryAfter() {
	report := deliver(queue.Config{}, func(context.Context, outbox.Delivery[OrderPlaced]) error {
		return outbox.RetryAfter(10*time.Minute, errors.New("too many requests"))
	})
	fmt.Println(report.Retried)
	// Output: 1
}

// The warehouse is down, and the event is not to blame: its attempt is not counted, and the topic rests. Events of other
// topics are delivered meanwhile.
func ExampleUnavailable() {
	report := deliver(queue.Config{}, func(context.Context, outbox.Delivery[OrderPlaced]) error {
		return outbox.Unavailable(errors.New("connect to the warehouse: connection refused"))
	})
	fmt.Println(report.Retried, report.Dead, report.Resting)
	// Output: 0 0 [shop/order_placed]
}

// A generated stub returns Unimplemented until somebody writes the handler. The events wait.
func ExampleUnimplemented() {
	report := deliver(queue.Config{}, func(context.Context, outbox.Delivery[OrderPlaced]) error {
		return outbox.Unimplemented("shop/order_placed")
	})
	fmt.Println(report.Resting)
	// Output: [shop/order_placed]
}

// A dispatcher that replaces what the topics say: at most two attempts, a minute apart.
func ExampleRetry() {
	cfg := queue.Config{Retry: outbox.Retry{MaxAttempts: 2, BaseDelay: time.Minute}}
	report := deliver(cfg, func(_ context.Context, d outbox.Delivery[OrderPlaced]) error {
		fmt.Println("attempt", d.Attempt, "of", d.MaxAttempts)
		return errors.New("the warehouse has no room")
	})
	fmt.Println(report.Retried)
	// Output:
	// attempt 1 of 2
	// 1
}

// While its target is away a topic rests. After each pause one event tries whether the target is back. Here the first try is
// after a second, and the pauses double up to 10 s.
func ExampleBreaker() {
	cfg := queue.Config{Breaker: outbox.Breaker{FirstPause: time.Second, MaxPause: 10 * time.Second}}
	report := deliver(cfg, func(context.Context, outbox.Delivery[OrderPlaced]) error {
		return outbox.Unavailable(errors.New("connect to the warehouse: connection refused"))
	})
	fmt.Println(report.Resting)
	// Output: [shop/order_placed]
}

// The retention of a topic says when its final events may be deleted. The dispatchers of the topic delete them.
func ExampleRetention() {
	topic := outbox.NewTopic[OrderPlaced](outbox.TopicSpec{
		Namespace: "shop", Name: "order_placed",
		Retention: outbox.Retention{Delivered: 24 * time.Hour, Dead: 90 * 24 * time.Hour},
	})
	fmt.Println(topic.Untyped().Spec().Retention.Delivered)
	// Output: 24h0m0s
}

// The log has what identifies an event, and never its payload or its headers.
func ExampleEvent_LogValue() {
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	logger.Info("mailed", "event", outbox.Event{
		ID:        uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11"),
		Namespace: "shop", Topic: "order_placed", Attempt: 1, Headers: map[string]string{"locale": "en"},
	})
	// Output: level=INFO msg=mailed event.namespace=shop event.topic=order_placed event.event_id=0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11 event.attempt=1
}
