// Command formats places and ships orders. Their events are rows with JSON, go over the wire as Protobuf and Avro, and are
// applied by another service. It uses the database DATABASE_URL. Without it the program starts a private PostgreSQL server,
// which ends with it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/examples/formats/ledger"
	"github.com/outboxgen/outboxgen/examples/formats/shop"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/worker/signals"
)

func main() {
	ctx := signals.Context(context.Background())
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "formats:", err)
		os.Exit(1)
	}
}

// run runs the demo in the database at url, or on a private server if url is empty.
func run(ctx context.Context, url string, out io.Writer) (err error) {
	if url == "" {
		// Only this repository can use this package: your own service would require a URL here.
		server, startErr := pgserver.Start(pgserver.Options{Durable: true})
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		url = server.URL()
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()
	if _, err := migrate.Up(ctx, pool, "outbox"); err != nil {
		return err
	}
	return demo(ctx, pool, out, 100)
}

// demo places and ships n orders and delivers their events to the ledger.
func demo(ctx context.Context, pool *pgxpool.Pool, out io.Writer, n int) error {
	if _, err := pool.Exec(ctx, ledger.Tables); err != nil {
		return fmt.Errorf("create ledger: %w", err)
	}
	for i := range n {
		if err := shop.PlaceAndShip(ctx, pool, uuid.New(), fmt.Sprintf("customer %d", i), 1<<53+int64(i)); err != nil {
			return fmt.Errorf("place order: %w", err)
		}
	}
	consumer, err := ledger.NewConsumer()
	if err != nil {
		return err
	}
	var mu sync.Mutex
	messages, bytes := make(map[string]int), make(map[string]int)
	// In place of a broker, the consumer is called directly.
	dispatcher, err := shop.NewDispatcher(pool, func(ctx context.Context, _ string, m publish.Message) error {
		mu.Lock()
		messages[m.ContentType]++
		bytes[m.ContentType] += len(m.Body)
		mu.Unlock()
		_, err := consumer.Consume(ctx, pool, consume.Message(m))
		return err
	}, queue.Config{})
	if err != nil {
		return err
	}
	report, err := dispatcher.Drain(ctx)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "%d events delivered\n", report.Delivered)
	for _, kind := range []string{"application/protobuf", "application/avro"} {
		_, _ = fmt.Fprintf(out, "%s: %d messages, %d bytes\n", kind, messages[kind], bytes[kind])
	}
	var orders, complete int
	err = pool.QueryRow(ctx, "SELECT count(*), count(*) FILTER (WHERE customer IS NOT NULL AND tracking IS NOT NULL) FROM ledger.orders").Scan(&orders, &complete)
	_, _ = fmt.Fprintf(out, "the ledger has %d orders, %d of them placed and shipped\n", orders, complete)
	return err
}
