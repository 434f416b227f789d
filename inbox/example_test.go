package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/inbox"
)

// connect opens the pool of the consumer, like pgxpool.New, on a database with the inbox.
var connect func() *pgxpool.Pool

// connectTo also creates the tables of the effects.
func connectTo(ctx context.Context, tables string) *pgxpool.Pool {
	pool := connect()
	if _, err := pool.Exec(ctx, tables); err != nil {
		log.Fatal(err)
	}
	return pool
}

// newCards returns the inbox of the group cards.
func newCards() *inbox.Inbox {
	in, err := inbox.New(inbox.Config{Group: "cards"})
	if err != nil {
		log.Fatal(err)
	}
	return in
}

// A consumer handles each message in a transaction, and acknowledges the message after the commit. If the process dies in
// between, the message comes again and is a duplicate.
func ExampleOnce() {
	ctx := context.Background()
	pool := connectTo(ctx, "CREATE TABLE accounts AS SELECT 17 AS id, 0 AS balance")
	event := uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11") // the id of the event in the message
	acknowledge := func() {}                                        // to the broker

	for range 2 { // the broker delivers the message twice
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			handled, err := inbox.Once(ctx, tx, "billing", event, func(ctx context.Context) error {
				_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + 5 WHERE id = 17")
				return err
			})
			fmt.Println("handled:", handled)
			return err
		})
		if err == nil {
			acknowledge() // also a duplicate
		}
	}

	var balance int
	err := pool.QueryRow(ctx, "SELECT balance FROM accounts").Scan(&balance)
	fmt.Println("balance:", balance, err)
	// Output:
	// handled: true
	// handled: false
	// balance: 5 <nil>
}

// New needs only a group. It refuses a retention that is too short for the time in which events can come again.
func ExampleNew() {
	in, err := inbox.New(inbox.Config{Group: "cards", Schema: "cards_inbox", Stale: inbox.Skip, ReplayWindow: 14 * 24 * time.Hour})
	fmt.Println(in != nil, err)

	_, err = inbox.New(inbox.Config{Group: "cards", ReplayWindow: 48 * time.Hour, Retention: 24 * time.Hour})
	fmt.Println(err)
	// Output:
	// true <nil>
	// new inbox: field Retention 24h0m0s is shorter than ReplayWindow 48h0m0s: an event replayed after its record was pruned would be handled again
}

// The records of a consumer that reads a compacted log, whose events can come again at any time, are kept permanently.
func ExampleConfig() {
	_, err := inbox.New(inbox.Config{
		Group:        "cards",
		ReplayWindow: inbox.Forever,
		Retention:    inbox.Forever,
		Stale:        inbox.Quarantine, // keep a copy of each stale event, for people to look at
	})
	fmt.Println(err)
	// Output: <nil>
}

// To continue with the transaction after a failed event, give Once a savepoint.
func ExampleInbox_Once() {
	ctx := context.Background()
	pool := connectTo(ctx, "CREATE TABLE failures (event uuid, reason text)")
	in := newCards()
	event := uuid.MustParse("0192d4a0-6c7e-7b1a-9a53-0c3f5a9b2e11")

	handle := func(tx pgx.Tx) error {
		return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			_, err := in.Once(ctx, savepoint, event, func(context.Context) error {
				return errors.New("no account 17")
			})
			return err
		})
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := handle(tx); err != nil {
			fmt.Println("failed:", err)
			_, err = tx.Exec(ctx, "INSERT INTO failures (event, reason) VALUES ($1, $2)", event, err.Error())
			return err
		}
		return nil
	})
	fmt.Println(err) // if nil, acknowledge the message
	// Output:
	// failed: no account 17
	// <nil>
}

// OnceMany handles a batch in one statement. fresh has the indexes of the events that were not recorded before.
func ExampleInbox_OnceMany() {
	ctx := context.Background()
	pool := connectTo(ctx, "CREATE TABLE totals AS SELECT 0::bigint AS amount")
	in := newCards()
	first, second := uuid.New(), uuid.New()
	ids := []uuid.UUID{first, second, first} // of the messages in a batch
	amounts := []int64{5, 7, 5}              // of the same messages

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := in.OnceMany(ctx, tx, ids, func(ctx context.Context, fresh []int) error {
			fmt.Println("fresh:", fresh)
			var sum int64
			for _, i := range fresh {
				sum += amounts[i]
			}
			_, err := tx.Exec(ctx, "UPDATE totals SET amount = amount + $1", sum)
			return err
		})
		return err
	})
	fmt.Println(err) // if nil, acknowledge the whole batch
	// Output:
	// fresh: [0 1]
	// <nil>
}

// Apply writes the state that an event reports, unless the entity has a newer one. So the events of an entity may come in
// any order. Here version 6 comes after version 7. It is skipped; Config.Stale has the alternatives.
func ExampleInbox_Apply() {
	ctx := context.Background()
	pool := connectTo(ctx, "CREATE TABLE cards AS SELECT 17 AS user_id, '' AS name")
	in := newCards()

	apply := func(version int64, name string) error {
		event := inbox.Event{ID: uuid.New(), Source: "/users", EntityType: "user", EntityID: "17", Version: version}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			outcome, err := in.Apply(ctx, tx, event, func(ctx context.Context) error {
				_, err := tx.Exec(ctx, "UPDATE cards SET name = $1 WHERE user_id = 17", name)
				return err
			})
			fmt.Println(version, outcome)
			return err
		})
	}
	fmt.Println(apply(7, "Zoë")) // if nil, acknowledge the message
	fmt.Println(apply(6, "Zoe"))

	var name string
	err := pool.QueryRow(ctx, "SELECT name FROM cards").Scan(&name)
	fmt.Println(name, err)
	// Output:
	// 7 applied
	// <nil>
	// 6 skipped
	// <nil>
	// Zoë <nil>
}

// Call Prune about once an hour, in one process or in several.
func ExampleInbox_Prune() {
	ctx := context.Background()
	pool, in := connect(), newCards()
	for range time.Tick(time.Hour) {
		n, err := in.Prune(ctx, pool)
		if err != nil {
			slog.ErrorContext(ctx, "prune inbox", "error", err)
		} else {
			slog.InfoContext(ctx, "pruned inbox", "rows", n)
		}
	}
}

// To rebuild a projection, stop its consumers, empty it and reset the group in one transaction, and read the broker's log
// from the start.
func ExampleInbox_Reset() {
	ctx := context.Background()
	pool := connectTo(ctx, "CREATE TABLE cards (user_id int, name text)")
	in := newCards()

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "TRUNCATE cards"); err != nil {
			return err
		}
		return in.Reset(ctx, tx)
	})
	fmt.Println(err)
	// Output: <nil>
}
