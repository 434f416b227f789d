package otel_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/telemetry/otel"
)

// Mailer handles the events. It does nothing about traces: a span that it starts with ctx, and an event that it enqueues,
// are in the trace of the request.
type Mailer struct{}

func (Mailer) HandlePlaced(ctx context.Context, d outbox.Delivery[order]) error { return nil }

// A service gives its root context and its dispatchers to a Telemetry. Without fields in Config it uses the global providers.
func Example() {
	serve := func(ctx context.Context, pool *pgxpool.Pool, kafka publish.Publisher) error {
		tel, err := otel.New(otel.Config{})
		if err != nil {
			return err
		}
		ctx = tel.Context(ctx)
		d, err := queue.NewDispatcher(pool, queue.Config{
			Observer:   tel.Observer(),
			Middleware: []outbox.Middleware{tel.Middleware},
			Publishers: map[string]publish.Publisher{"kafka": tel.Publisher("kafka", kafka)},
		}, queue.Handle(placed, Mailer{}, Mailer{}.HandlePlaced))
		if err != nil {
			return err
		}
		return d.Run(ctx)
	}
	_ = serve
}

// The consumer of a broker calls its consumer in a span that continues the trace of the message.
func ExampleTelemetry_Consume() {
	tel, err := otel.New(otel.Config{})
	if err != nil {
		log.Fatal(err)
	}
	message := consume.Message{ // of the broker, made by consume.FromKafka for example
		ContentType: "application/json",
		Headers: map[string]string{
			"outbox-id": "0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11", "outbox-type": "shop.placed", "outbox-version": "1",
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		},
		Body: []byte(`{"id": "17"}`),
	}
	err = tel.Consume(context.Background(), "kafka", "billing", message, func(ctx context.Context) error {
		// _, err := consumer.Consume(ctx, pool, message)
		fmt.Println("consume")
		return nil
	})
	fmt.Println(err)
	// Output:
	// consume
	// <nil>
}
