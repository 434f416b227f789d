// Command users runs two services in one process. One keeps users in a table and sends their events through the outbox to
// Kafka. The other keeps a card of each user, and knows the users only from Kafka. Users sign up, are renamed and deleted,
// while messages are repeated and reordered on their way. Then the program compares the cards with the users, builds the
// cards again from the first message, and compares again.
//
// DATABASE_URL is the database of the users. CARDS_DATABASE_URL is the database of the cards; the default is the same
// database. Without DATABASE_URL the program starts a private PostgreSQL server, which ends with it. KAFKA_BROKERS is a list
// of addresses of a Kafka cluster. Without it Kafka runs in this process.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/examples/users/database"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/worker/signals"
)

func main() {
	ctx := signals.Context(context.Background())
	err := run(ctx, environment{
		users: os.Getenv("DATABASE_URL"), cards: os.Getenv("CARDS_DATABASE_URL"), brokers: os.Getenv("KAFKA_BROKERS"),
	}, os.Stdout)
	interrupted := ctx.Err() != nil
	switch {
	case err == nil:
	case interrupted:
		_, _ = fmt.Fprintln(os.Stderr, "users: interrupted")
		os.Exit(130)
	default:
		_, _ = fmt.Fprintln(os.Stderr, "users:", err)
		os.Exit(1)
	}
}

// environment has the addresses of databases and brokers. For an empty one the program starts its own.
type environment struct{ users, cards, brokers string }

func run(ctx context.Context, env environment, out io.Writer) (err error) {
	if env.users == "" {
		// Only this repository can use this package: your own service would require a URL here.
		server, startErr := pgserver.Start(pgserver.Options{Durable: true})
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		env.users = server.URL()
		if env.cards == "" {
			if err := createDatabase(ctx, server.URL(), "cards"); err != nil {
				return err
			}
			env.cards = server.URLOf("cards")
		}
	}
	users, err := open(ctx, env.users, database.Migrate)
	if err != nil {
		return err
	}
	defer users.Close()
	projection, err := open(ctx, cmp.Or(env.cards, env.users), cards.Migrate)
	if err != nil {
		return err
	}
	defer projection.Close()
	brokers, stop, err := connect(ctx, env.brokers)
	if err != nil {
		return err
	}
	defer stop()
	return demo{users: users, cards: projection, brokers: brokers, tenant: uuid.New(), out: out}.run(ctx)
}

// open connects to a database and migrates it.
func open(ctx context.Context, url string, migrate func(context.Context, *pgxpool.Pool) error) (*pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := migrate(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

func createDatabase(ctx context.Context, url, name string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	return nil
}

// split returns the addresses in a list.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}
