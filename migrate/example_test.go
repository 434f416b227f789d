package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/migrate"
)

// connect opens the pool of the service, like pgxpool.New. The database has no outbox yet.
var connect func() *pgxpool.Pool

// A service calls Up when it starts, before its dispatchers and listeners run. Processes that start concurrently wait for each
// other, and a second Up applies nothing.
func ExampleUp() {
	ctx := context.Background()
	pool := connect()

	applied, err := migrate.Up(ctx, pool, "outbox")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(applied[0].Version, applied[0].Name)

	applied, err = migrate.Up(ctx, pool, "outbox")
	fmt.Println(len(applied), err)
	// Output:
	// 1 events
	// 0 <nil>
}

// Status lists the migrations, applied or not. It changes nothing.
func ExampleStatus() {
	ctx := context.Background()
	pool := connect()

	states, err := migrate.Status(ctx, pool, "outbox")
	if err != nil {
		log.Fatal(err)
	}
	first := states[0]
	fmt.Println(first.Version, first.Name, first.Err)

	if _, err := migrate.Up(ctx, pool, "outbox"); err != nil {
		log.Fatal(err)
	}
	if states, err = migrate.Status(ctx, pool, "outbox"); err != nil {
		log.Fatal(err)
	}
	first = states[0]
	fmt.Println(first.Version, first.Name, first.Err, !first.AppliedAt.IsZero())
	// Output:
	// 1 events migration is not applied: run outboxgen migrate up
	// 1 events <nil> true
}

// A service that may not migrate calls Validate when it starts.
func ExampleValidate() {
	ctx := context.Background()
	pool := connect()

	err := migrate.Validate(ctx, pool, "outbox")
	fmt.Println(errors.Is(err, migrate.ErrPending))
	var first *migrate.Error
	if errors.As(err, &first) {
		fmt.Println(first)
	}

	if _, err := migrate.Up(ctx, pool, "outbox"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(migrate.Validate(ctx, pool, "outbox"))
	// Output:
	// true
	// migrate schema outbox: 0001_events: migration is not applied: run outboxgen migrate up
	// <nil>
}

// Down reverts migrations, newest first, and drops their tables with all events in them. Version 0 reverts everything.
func ExampleDown() {
	ctx := context.Background()
	pool := connect()

	applied, err := migrate.Up(ctx, pool, "outbox")
	if err != nil {
		log.Fatal(err)
	}
	reverted, err := migrate.Down(ctx, pool, "outbox", 0)
	fmt.Println(len(reverted) == len(applied), err)
	// Output: true <nil>
}

// The migrations join the history of an application that uses goose and has eleven files so far.
func ExampleExport() {
	files, err := migrate.Export("outbox", migrate.Goose, 12)
	if err != nil {
		log.Fatal(err)
	}
	// Write each file's Content to the folder of the migrations, under its Name.
	fmt.Println(files[0].Name)
	// Output: 00012_outbox_events.sql
}

// The values of the flag of a tool that exports.
func ExampleFormats() {
	fmt.Println(migrate.Formats())
	// Output: [plain goose tern golang-migrate atlas]
}

// All lists the migrations of this module without a database.
func ExampleAll() {
	first := migrate.All()[0]
	fmt.Println(first.Version, first.Name, len(first.Checksum))
	// Output: 1 events 64
}
