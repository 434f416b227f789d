// Command orders takes orders while no dispatcher runs. Then it starts a dispatcher and prints the backlog until it is
// empty. It uses the database DATABASE_URL. Without it the program starts a private PostgreSQL server, which ends with
// it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/orders/database"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/worker/signals"
)

func main() {
	ctx := signals.Context(context.Background())
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "orders:", err)
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
	if err := database.Migrate(ctx, pool); err != nil {
		return err
	}
	return demo{pool: pool, shop: uuid.New(), out: out}.run(ctx, 5000)
}
