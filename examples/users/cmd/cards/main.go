// Command cards is the other service as a separate process. Until it is interrupted, it keeps the cards in the database
// CARDS_DATABASE_URL up to date with the events in the cluster KAFKA_BROKERS.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/worker/signals"
)

func main() {
	rebuild := flag.Bool("rebuild", false, "empty the cards and read from the start")
	flag.Parse()
	ctx := signals.Context(context.Background())
	if err := run(ctx, os.Getenv("CARDS_DATABASE_URL"), os.Getenv("KAFKA_BROKERS"), *rebuild); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "cards:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url, brokers string, rebuild bool) error {
	if url == "" || brokers == "" {
		return errors.New("CARDS_DATABASE_URL and KAFKA_BROKERS must be set")
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()
	if err := cards.Migrate(ctx, pool); err != nil {
		return err
	}
	p, err := cards.New(pool, cards.Config{Brokers: strings.Split(brokers, ",")})
	if err != nil {
		return err
	}
	if rebuild {
		if err := p.Rebuild(ctx); err != nil {
			return err
		}
	}
	return p.Run(ctx)
}
