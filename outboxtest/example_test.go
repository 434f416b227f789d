package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/queue"
)

// OrderPlaced is the payload of a topic. outboxgen generates it, and the topic, from YAML.
type OrderPlaced struct {
	OrderID    string `json:"order_id"`
	TotalCents int    `json:"total_cents"`
}

var orderPlaced = outbox.NewTopic[OrderPlaced](outbox.TopicSpec{Namespace: "shop", Name: "order_placed"})

// placeOrder is the code under test.
func placeOrder(ctx context.Context, tx pgx.Tx, id string, totalCents int) error {
	if totalCents <= 0 {
		return errors.New("place order: it is empty")
	}
	_, err := orderPlaced.Enqueue(ctx, tx, OrderPlaced{OrderID: id, TotalCents: totalCents})
	return err
}

// Mailer handles the events. It is under test as well.
type Mailer struct{}

func (Mailer) HandleOrderPlaced(_ context.Context, d outbox.Delivery[OrderPlaced]) error {
	fmt.Println("mail about order", d.Payload.OrderID)
	return nil
}

// run runs a test, like go test.
var run func(test func(t testing.TB))

// A test places an order, checks its event, and has the handler deliver it.
func Example() {
	test := func(t testing.TB) { // in your code: func TestPlaceOrder(t *testing.T)
		pool := outboxtest.Postgres(t)
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return placeOrder(t.Context(), tx, "17", 4200)
		})
		if err != nil {
			t.Fatal(err)
		}
		outboxtest.RequireEnqueued(t, pool, orderPlaced, func(p OrderPlaced) bool { return p.OrderID == "17" })

		d, err := queue.NewDispatcher(pool, queue.Config{}, queue.Handle(orderPlaced, Mailer{}, Mailer{}.HandleOrderPlaced))
		if err != nil {
			t.Fatal(err)
		}
		if report := outboxtest.Drain(t, d); report.Delivered != 1 {
			t.Fatalf("want one event delivered, have %+v", report)
		}
	}
	run(test)
	// Output: mail about order 17
}

// Postgres gives each test its own database, with the outbox in it.
func ExamplePostgres() {
	test := func(t testing.TB) {
		pool := outboxtest.Postgres(t)
		if _, err := pool.Exec(t.Context(), "CREATE TABLE orders (id text PRIMARY KEY)"); err != nil {
			t.Fatal(err)
		}
		var events int
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM outbox.events").Scan(&events)
		fmt.Println(events, err)
	}
	run(test)
	// Output: 0 <nil>
}

// The service under test has its outbox in the schema shop.
func ExampleSchema() {
	test := func(t testing.TB) {
		pool := outboxtest.Postgres(t, outboxtest.Schema("shop"))
		var events int
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM shop.events").Scan(&events)
		fmt.Println(events, err)
	}
	run(test)
	// Output: 0 <nil>
}

// The test reads the event in the transaction that enqueued it, and rolls back.
func ExampleRequireEnqueued() {
	test := func(t testing.TB) {
		tx, err := outboxtest.Postgres(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if err := placeOrder(t.Context(), tx, "17", 4200); err != nil {
			t.Fatal(err)
		}

		placed := outboxtest.RequireEnqueued(t, tx, orderPlaced, func(p OrderPlaced) bool { return p.OrderID == "17" })
		fmt.Println(placed.TotalCents)
	}
	run(test)
	// Output: 4200
}

// An order that is refused must not have an event. A nil match means any event of the topic.
func ExampleRequireNotEnqueued() {
	test := func(t testing.TB) {
		pool := outboxtest.Postgres(t)
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return placeOrder(t.Context(), tx, "18", 0)
		})
		fmt.Println(err)
		outboxtest.RequireNotEnqueued(t, pool, orderPlaced, nil)
	}
	run(test)
	// Output: place order: it is empty
}

// Drain delivers all events that are due, one after another. A handler that fails does not fail the test: check the report.
func ExampleDrain() {
	test := func(t testing.TB) {
		pool := outboxtest.Postgres(t)
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return placeOrder(t.Context(), tx, "17", 4200)
		})
		if err != nil {
			t.Fatal(err)
		}
		d, err := queue.NewDispatcher(pool, queue.Config{}, queue.Handle(orderPlaced, Mailer{}, Mailer{}.HandleOrderPlaced))
		if err != nil {
			t.Fatal(err)
		}

		report := outboxtest.Drain(t, d)
		fmt.Println(report.Delivered, report.Retried, report.Dead)
	}
	run(test)
	// Output:
	// mail about order 17
	// 1 0 0
}
