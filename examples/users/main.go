// Command users has two services in one process. One keeps users in a table and tells of them through the outbox and
// Kafka; the other keeps cards of the users, which it knows from Kafka alone. Users sign up, are renamed and deleted, while
// messages are repeated and mixed up on their way; then the cards are compared with the users, made anew from the start,
// and compared again.
//
// The database of the users is that of DATABASE_URL, that of the cards is CARDS_DATABASE_URL or the same one; without the
// former a private PostgreSQL server runs for as long as the program does. Kafka is the cluster of KAFKA_BROKERS, a list of
// addresses; without it, one in this process.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/examples/users/database"
	"github.com/outboxgen/outboxgen/internal/pgserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, environment{
		users: os.Getenv("DATABASE_URL"), cards: os.Getenv("CARDS_DATABASE_URL"), brokers: os.Getenv("KAFKA_BROKERS"),
	}, os.Stdout)
	interrupted := ctx.Err() != nil
	stop()
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

// environment says where things are. What is empty is started for as long as the program runs.
type environment struct{ users, cards, brokers string }

func run(ctx context.Context, env environment, out io.Writer) (err error) {
	if env.users == "" {
		// A package of this repository only: a service of your own would ask for its URL here.
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

// split returns the addresses of a list.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}
