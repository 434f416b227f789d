package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// connect opens the pool of the service, like pgxpool.New, on a database with the outbox.
var connect func() *pgxpool.Pool

// OrderPlaced is the payload of a topic. outboxgen generates it, and the topic, from YAML.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
	Email   string `json:"email"`
}

var orderPlaced = outbox.NewTopic[OrderPlaced](outbox.TopicSpec{Namespace: "shop", Name: "order_placed"})

// place enqueues an event for each order.
func place(ctx context.Context, pool *pgxpool.Pool, orders ...OrderPlaced) {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := orderPlaced.EnqueueMany(ctx, tx, orders)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Mailer handles the events.
type Mailer struct {
	sent func() // called after each mail; nil means nothing
}

func (m Mailer) HandleOrderPlaced(_ context.Context, d outbox.Delivery[OrderPlaced]) error {
	if d.Payload.Email == "" {
		return outbox.Permanent(fmt.Errorf("order %s has no address", d.Payload.OrderID))
	}
	fmt.Println("mail to", d.Payload.Email)
	if m.sent != nil {
		m.sent()
	}
	return nil
}

// A dispatcher runs as long as its service. From YAML, outboxgen generates a constructor that calls NewDispatcher and Handle.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	pool := connect()
	place(ctx, pool, OrderPlaced{OrderID: "17", Email: "ada@example.com"})

	mailer := Mailer{sent: stop} // ends this example after one mail; a service runs until a signal comes
	d, err := queue.NewDispatcher(pool, queue.Config{}, queue.Handle(orderPlaced, mailer, mailer.HandleOrderPlaced))
	if err != nil {
		log.Fatal(err)
	}
	err = d.Run(ctx) // until ctx ends
	stop()
	fmt.Println(err)
	// Output:
	// mail to ada@example.com
	// <nil>
}

// Events whose topic has no handler in this dispatcher wait for a process that has one.
func ExampleNewDispatcher() {
	pool := connect()
	mailer := Mailer{}

	d, err := queue.NewDispatcher(pool, queue.Config{}, queue.Handle(orderPlaced, mailer, mailer.HandleOrderPlaced))
	fmt.Println(d != nil, err)

	_, err = queue.NewDispatcher(pool, queue.Config{Topics: []string{"order_sent"}},
		queue.Handle(orderPlaced, mailer, mailer.HandleOrderPlaced))
	fmt.Println(err)
	// Output:
	// true <nil>
	// new dispatcher: field Topics: shop has no topic "order_sent" with a handler
}

// A handler that gets batches names the events that have failed. The others are delivered.
func ExampleHandleBatch() {
	ctx := context.Background()
	pool := connect()
	spec := orderPlaced.Untyped().Spec()
	spec.Batch = outbox.Batch{Size: 100, Wait: 200 * time.Millisecond}
	topic := outbox.NewTopic[OrderPlaced](spec)
	place(ctx, pool, OrderPlaced{OrderID: "17", Email: "ada@example.com"}, OrderPlaced{OrderID: "18"})

	mailer := Mailer{}
	d, err := queue.NewDispatcher(pool, queue.Config{}, queue.HandleBatch(topic, mailer, mailer.HandleOrderPlacedBatch))
	if err != nil {
		log.Fatal(err)
	}
	report, err := d.Drain(ctx)
	fmt.Println(report.Delivered, report.Dead, err)
	// Output:
	// 2 orders in one call
	// mail to ada@example.com
	// 1 1 <nil>
}

func (m Mailer) HandleOrderPlacedBatch(ctx context.Context, ds []outbox.Delivery[OrderPlaced]) error {
	fmt.Println(len(ds), "orders in one call")
	var failed outbox.BatchError
	for _, d := range ds {
		failed.Fail(d.Event, m.HandleOrderPlaced(ctx, d)) // a nil error changes nothing
	}
	return failed.Err()
}

// The second argument is the value with the handlers, and the third is its method for this topic.
func ExampleHandle() {
	ctx := context.Background()
	pool := connect()
	place(ctx, pool, OrderPlaced{OrderID: "17", Email: "ada@example.com"}, OrderPlaced{OrderID: "18"})

	mailer := Mailer{}
	d, err := queue.NewDispatcher(pool, queue.Config{Concurrency: 1}, queue.Handle(orderPlaced, mailer, mailer.HandleOrderPlaced))
	if err != nil {
		log.Fatal(err)
	}
	report, err := d.Drain(ctx)
	fmt.Println(report.Delivered, report.Dead, err) // order 18 has no address, and no retry can help
	// Output:
	// mail to ada@example.com
	// 1 1 <nil>
}

// Printer is a publisher that prints events instead of sending them to a broker.
type Printer struct{}

func (Printer) Publish(ctx context.Context, events []publish.Outgoing) []error {
	return publish.Each(ctx, events, 1, func(_ context.Context, o publish.Outgoing) error {
		fmt.Println(o.Destination, o.Key, string(o.Payload))
		return nil
	})
}

// The events of the topic go to a broker instead of a handler. A service would have a publisher of publish/kafka,
// publish/nats or publish/webhook.
func ExamplePublish() {
	ctx := context.Background()
	pool := connect()
	place(ctx, pool, OrderPlaced{OrderID: "17", Email: "ada@example.com"})

	d, err := queue.NewDispatcher(pool,
		queue.Config{Publishers: map[string]publish.Publisher{"kafka": Printer{}}},
		queue.Publish(orderPlaced, publish.Publication{
			Broker: "kafka", Destination: "shop.orders",
			Key: func(p any) eventkey.Key {
				return eventkey.NewKey(eventkey.StringPart("order_id", p.(*OrderPlaced).OrderID))
			},
		}))
	if err != nil {
		log.Fatal(err)
	}
	report, err := d.Drain(ctx)
	fmt.Println(report.Delivered, err)
	// Output:
	// shop.orders 17 {"email": "ada@example.com", "order_id": "17"}
	// 1 <nil>
}

// Drain is for a cron job: it delivers what is due, and returns.
func ExampleDispatcher_Drain() {
	ctx := context.Background()
	pool := connect()
	place(ctx, pool, OrderPlaced{OrderID: "17", Email: "ada@example.com"})

	mailer := Mailer{}
	d, err := queue.NewDispatcher(pool, queue.Config{}, queue.Handle(orderPlaced, mailer, mailer.HandleOrderPlaced))
	if err != nil {
		log.Fatal(err)
	}
	report, err := d.Drain(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d delivered, %d to retry, %d dead\n", report.Delivered, report.Retried, report.Dead)
	// Output:
	// mail to ada@example.com
	// 1 delivered, 0 to retry, 0 dead
}

// A dispatcher for slow handlers, with a pool that goes through a pooler in transaction mode: such a pool cannot listen, so
// the dispatcher polls.
func ExampleConfig() {
	pool := connect()
	mailer := Mailer{}
	_, err := queue.NewDispatcher(pool, queue.Config{
		Concurrency:     16, // the pool needs four connections more
		LeaseDuration:   2 * time.Minute,
		ShutdownTimeout: 30 * time.Second,
		Retry:           outbox.Retry{MaxAttempts: 10},
		Wake:            outbox.WakePoll,
		Logger:          slog.Default().With("service", "shop"),
	}, queue.Handle(orderPlaced, mailer, mailer.HandleOrderPlaced))
	fmt.Println(err)
	// Output: <nil>
}

// A Store is for programs with their own loop: claim, handle, ack.
func ExampleStore() {
	ctx := context.Background()
	pool := connect()
	place(ctx, pool, OrderPlaced{OrderID: "17"}, OrderPlaced{OrderID: "18"})

	store, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	for {
		events, err := store.Claim(ctx, queue.ClaimConfig{BatchSize: 10, LeaseDuration: time.Minute})
		if err != nil {
			log.Fatal(err)
		}
		if len(events) == 0 {
			break // a service would wait a second and continue
		}
		for _, e := range events {
			fmt.Println(e.Topic, string(e.Payload))
		}
		// After ErrLeaseLost an event was or will be handled again: the lease was too short.
		if _, err := store.Ack(ctx, events...); err != nil && !errors.Is(err, outbox.ErrLeaseLost) {
			log.Fatal(err)
		}
	}
	// Output:
	// order_placed {"email": "", "order_id": "17"}
	// order_placed {"email": "", "order_id": "18"}
}

// claimed returns a store and an event that it has claimed.
func claimed(ctx context.Context) (*queue.Store, queue.Claimed) {
	pool := connect()
	place(ctx, pool, OrderPlaced{OrderID: "17"})
	store, err := queue.NewStore(pool, queue.StoreConfig{Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	events, err := store.Claim(ctx, queue.ClaimConfig{})
	if err != nil {
		log.Fatal(err)
	}
	return store, events[0]
}

// A failed event is due again after a back-off, or at a time that the caller sets.
func ExampleStore_Nack() {
	ctx := context.Background()
	store, event := claimed(ctx)

	outcomes, err := store.Nack(ctx, queue.Failure{
		Claimed: event, Err: errors.New("too many mails today"), RetryAt: time.Now().Add(24 * time.Hour),
	})
	fmt.Println(outcomes, err)
	// Output: [applied] <nil>
}

// Each failure of one call is settled by itself. Failures with a Permanent error become dead letters.
func ExampleFailure() {
	ctx := context.Background()
	store, event := claimed(ctx)

	_, err := store.Nack(ctx, queue.Failure{Claimed: event, Err: outbox.Permanent(errors.New("order 17 has no address"))})
	if err != nil {
		log.Fatal(err)
	}
	again, err := store.Claim(ctx, queue.ClaimConfig{})
	fmt.Println(len(again), err)
	// Output: 0 <nil>
}

// A program that stops hands its events back. Their attempt does not count, and they are due immediately.
func ExampleStore_Release() {
	ctx := context.Background()
	store, event := claimed(ctx)

	if _, err := store.Release(ctx, event); err != nil {
		log.Fatal(err)
	}
	again, err := store.Claim(ctx, queue.ClaimConfig{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(again[0].ID == event.ID, again[0].Attempt)
	// Output: true 1
}

// Renew the lease before it ends, and stop handling an event whose lease is lost.
func ExampleStore_Extend() {
	ctx := context.Background()
	store, event := claimed(ctx)

	outcomes, err := store.Extend(ctx, time.Minute, event)
	fmt.Println(outcomes, err)
	// Output: [applied] <nil>
}

// An outcome says whether the claim was still valid. A repeated Ack, after its answer was lost, changes nothing.
func ExampleOutcome() {
	ctx := context.Background()
	store, event := claimed(ctx)

	for range 2 {
		outcomes, err := store.Ack(ctx, event)
		fmt.Println(outcomes[0], err)
	}
	outcomes, err := store.Release(ctx, event)
	fmt.Println(outcomes[0], errors.Is(err, outbox.ErrLeaseLost))
	// Output:
	// applied <nil>
	// already <nil>
	// lost true
}

// Prune deletes final events after their retention. Call it about every ten minutes, unless a dispatcher of these topics
// runs: it prunes by itself.
func ExampleStore_Prune() {
	ctx := context.Background()
	pool := connect()
	store, err := queue.NewStore(pool, queue.StoreConfig{
		Namespace: "shop",
		Retention: map[string]outbox.Retention{
			"order_placed": {Delivered: 24 * time.Hour, Dead: 30 * 24 * time.Hour},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	deleted, err := store.Prune(ctx)
	fmt.Println(deleted, err)
	// Output: 0 <nil>
}

// Call SweepDead about every minute, unless a dispatcher runs. It finds events whose last attempt killed its process.
func ExampleStore_SweepDead() {
	ctx := context.Background()
	store, _ := claimed(ctx)

	dead, err := store.SweepDead(ctx)
	fmt.Println(dead, err)
	// Output: 0 <nil>
}
