// Command threads is a chat backend: messages are pushed to the clients that watch their thread, and a companion answers
// them. It plays a short conversation and prints what the clients see. With -listen it serves until it is interrupted. It
// uses the database DATABASE_URL. Without it the program starts a private PostgreSQL server, which ends with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/threads/database"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/worker/signals"
)

func main() {
	listen := flag.String("listen", "", "serve on this `address`, such as localhost:8080, until interrupted")
	flag.Parse()
	ctx := signals.Context(context.Background())
	if err := run(ctx, os.Getenv("DATABASE_URL"), *listen, os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "threads:", err)
		os.Exit(1)
	}
}

// run serves on the address listen, or plays the conversation if listen is empty. It uses the database at url, or a private
// server if url is empty.
func run(ctx context.Context, url, listen string, out io.Writer) (err error) {
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
	s, err := newService(pool)
	if err != nil {
		return err
	}
	defer s.page.Close()
	if listen == "" {
		return newDemo(pool, out).run(ctx, s)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "listening on http://%s\n", l.Addr())
	return s.run(ctx, l)
}
