package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/inbox"
)

// What the examples have from elsewhere: connections, a message of the broker, and an Inbox.
var (
	examplePool  *pgxpool.Pool // of the database with the effects
	exampleInbox *inbox.Inbox  // from inbox.New
	exampleEvent uuid.UUID     // the id of the event in the message
)

// acknowledge stands for the acknowledgement to the broker.
func acknowledge() {}

// A consumer handles each message in a transaction, and acknowledges the message after the commit. If the process dies in
// between, the message comes again and is a duplicate.
func ExampleOnce() {
	ctx := context.Background()
	err := pgx.BeginFunc(ctx, examplePool, func(tx pgx.Tx) error {
		handled, err := inbox.Once(ctx, tx, "billing", exampleEvent, func(ctx context.Context) error {
			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + 5 WHERE id = 17")
			return err
		})
		if err == nil && !handled {
			slog.InfoContext(ctx, "duplicate event", "event_id", exampleEvent)
		}
		return err
	})
	if err == nil {
		acknowledge() // also a duplicate
	}
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

// To continue with the transaction after a failed event, give Once a savepoint.
func ExampleInbox_Once() {
	ctx := context.Background()
	handle := func(tx pgx.Tx) error {
		return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			_, err := exampleInbox.Once(ctx, savepoint, exampleEvent, func(ctx context.Context) error {
				_, err := savepoint.Exec(ctx, "UPDATE accounts SET balance = balance + 5 WHERE id = 17")
				return err
			})
			return err
		})
	}
	err := pgx.BeginFunc(ctx, examplePool, func(tx pgx.Tx) error {
		if err := handle(tx); err != nil {
			_, err = tx.Exec(ctx, "INSERT INTO failures (event, reason) VALUES ($1, $2)", exampleEvent, err.Error())
			return err
		}
		return nil
	})
	if err == nil {
		acknowledge()
	}
}

// OnceMany handles a batch in one statement. fresh has the indexes of the events that were not recorded before.
func ExampleInbox_OnceMany() {
	ctx := context.Background()
	var ids []uuid.UUID // of the messages in a batch
	var amounts []int64 // of the same messages
	err := pgx.BeginFunc(ctx, examplePool, func(tx pgx.Tx) error {
		_, err := exampleInbox.OnceMany(ctx, tx, ids, func(ctx context.Context, fresh []int) error {
			var sum int64
			for _, i := range fresh {
				sum += amounts[i]
			}
			_, err := tx.Exec(ctx, "UPDATE totals SET amount = amount + $1", sum)
			return err
		})
		return err
	})
	if err == nil {
		acknowledge() // the whole batch
	}
}

// Apply writes the state that an event reports, unless the entity has a newer one. So the events of an entity may come in
// any order.
func ExampleInbox_Apply() {
	ctx := context.Background()
	var name string // the state in the event
	err := pgx.BeginFunc(ctx, examplePool, func(tx pgx.Tx) error {
		outcome, err := exampleInbox.Apply(ctx, tx, inbox.Event{
			ID: exampleEvent, Source: "/users", EntityType: "user", EntityID: "17", Version: 7,
		}, func(ctx context.Context) error {
			_, err := tx.Exec(ctx, "UPDATE cards SET name = $1 WHERE user_id = 17", name)
			return err
		})
		switch {
		case errors.Is(err, inbox.ErrStale): // only with Config.Stale set to inbox.Error
			slog.WarnContext(ctx, "stale event", "event_id", exampleEvent)
		case err == nil && outcome != inbox.Applied: // inbox.Duplicate, inbox.Skipped or inbox.Quarantined
			slog.InfoContext(ctx, "event had no effect", "event_id", exampleEvent, "outcome", outcome)
		}
		return err
	})
	if err == nil {
		acknowledge()
	}
}

// Call Prune about once an hour, in one process or in several.
func ExampleInbox_Prune() {
	ctx := context.Background()
	for range time.Tick(time.Hour) {
		n, err := exampleInbox.Prune(ctx, examplePool)
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
	err := pgx.BeginFunc(ctx, examplePool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "TRUNCATE cards"); err != nil {
			return err
		}
		return exampleInbox.Reset(ctx, tx)
	})
	if err != nil {
		slog.ErrorContext(ctx, "reset cards", "error", err)
	}
}
