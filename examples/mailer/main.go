// Command mailer writes mails and digests of three tenants, and sends them with two dispatchers by a provider that refuses
// what is above its limits. One mailbox has more mails than the provider takes in a minute. The program ends when only those
// are left that wait for the next minute. It uses the database DATABASE_URL. Without it the program starts a private
// PostgreSQL server, which ends with it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/mailer/database"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/worker/signals"
)

func main() {
	ctx := signals.Context(context.Background())
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "mailer:", err)
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
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("read DATABASE_URL: %w", err)
	}
	config.MaxConns = max(config.MaxConns, 28) // for two dispatchers, each with ten handlers
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()
	if err := database.Migrate(ctx, pool); err != nil {
		return err
	}
	return newDemo(pool, out).run(ctx)
}
