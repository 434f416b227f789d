package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/worker"
)

// OrderPlaced is the payload of a topic. outboxgen generates it, the topic, and a constructor of its dispatcher.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
}

var orderPlaced = outbox.NewTopic[OrderPlaced](outbox.TopicSpec{Namespace: "shop", Name: "order_placed"})

// Mailer handles the events.
type Mailer struct{}

func (Mailer) HandleOrderPlaced(_ context.Context, d outbox.Delivery[OrderPlaced]) error {
	fmt.Println("mail for order", d.Payload.OrderID)
	return nil
}

// newShopWorker returns a worker with the dispatcher of the shop. A service has one part for each dispatcher and listener.
func newShopWorker(ctx context.Context) *worker.Worker {
	pool := pgtest.ExampleDatabase() // a service uses pgxpool.New
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := orderPlaced.Enqueue(ctx, tx, OrderPlaced{OrderID: "17"})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	shop, err := queue.NewDispatcher(pool, queue.Config{}, queue.Handle(orderPlaced, Mailer{}, Mailer{}.HandleOrderPlaced))
	if err != nil {
		log.Fatal(err)
	}
	w, err := worker.New(worker.Part{Name: "shop", Runner: shop})
	if err != nil {
		log.Fatal(err)
	}
	return w
}

// A cron job drains what is due, within bounds, and ends.
func ExampleWorker_DrainUpTo() {
	ctx := context.Background() // a program uses signals.Context
	w := newShopWorker(ctx)

	report, err := w.DrainUpTo(ctx, outbox.DrainLimit{Events: 10_000, Time: 50 * time.Second})
	fmt.Println(report.Delivered, "delivered, ended:", report.Ended, err)
	// Output:
	// mail for order 17
	// 1 delivered, ended: drained <nil>
}

// A scheduler calls an endpoint that drains.
func ExampleWorker_DrainHandler() {
	w := newShopWorker(context.Background())
	drain, err := w.DrainHandler(worker.HandlerConfig{
		Key:   "a-long-random-key-for-the-scheduler", // os.Getenv("DRAIN_KEY")
		Limit: outbox.DrainLimit{Events: 10_000, Time: 50 * time.Second},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/drain", drain)
	server := httptest.NewServer(mux)
	defer server.Close()

	// What the scheduler does: curl -X POST -H "Authorization: Bearer $DRAIN_KEY" "$URL/drain?events=500"
	r, err := http.NewRequest(http.MethodPost, server.URL+"/drain?events=500", nil)
	if err != nil {
		log.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer a-long-random-key-for-the-scheduler")
	answer, err := server.Client().Do(r)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	var report struct {
		Delivered int
		Ended     outbox.DrainEnd
		More      bool
	}
	if err := json.NewDecoder(answer.Body).Decode(&report); err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.StatusCode, "delivered:", report.Delivered, "ended:", report.Ended, "more:", report.More)
	// Output:
	// mail for order 17
	// 200 delivered: 1 ended: drained more: false
}
