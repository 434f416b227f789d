// Command worker ships the orders: it delivers the events of package events. It is what `outboxgen init --worker events`
// has written, with the handler filled in.
//
//	worker run     delivers until it is told to stop by SIGTERM or SIGINT
//	worker drain   delivers what is due, prints a report as JSON and ends, for cron jobs
//
// Both use the database at DATABASE_URL, or that of the PG* variables, which `outboxgen migrate up` has prepared. They
// stop gracefully: handlers that run may finish, and their results are kept. A second Ctrl-C ends them immediately.
//
// The exit status is 0 when run was told to stop, however often, and when drain has come to its end or to one of its bounds,
// also if some events have failed: those are tried again later, and `outboxgen status --check` watches them. "more" in the
// report says that a bound has ended the drain. The status is 1 when the database or a handler prevents the work, and 2 for
// wrong arguments.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/orders/events"
	"github.com/outboxgen/outboxgen/examples/orders/shipping"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/worker"
	"github.com/outboxgen/outboxgen/worker/signals"
)

func main() {
	ctx := signals.Context(context.Background())
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, errUsage):
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	case err != nil:
		_, _ = fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: worker run, or worker drain [-events n] [-time 50s]")

// run runs the command that args name.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	var limit outbox.DrainLimit
	flags := flag.NewFlagSet("worker "+args[0], flag.ContinueOnError)
	if args[0] == "drain" {
		flags.IntVar(&limit.Events, "events", 0, "handle at most this many `events` per dispatcher and listener; 0 means any number")
		flags.DurationVar(&limit.Time, "time", 50*time.Second, "start handlers for this `duration` only; 0 means any time")
	}
	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil, flags.NArg() > 0:
		return errUsage
	}

	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return fmt.Errorf("read DATABASE_URL: %w", err)
	}
	config.MaxConns = max(config.MaxConns, 14) // for the dispatchers and listeners below, and for their handlers
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()
	w, err := newWorker(pool)
	if err != nil {
		return err
	}
	switch args[0] {
	case "run":
		return w.Run(ctx)
	case "drain":
		report, err := w.DrainUpTo(ctx, limit)
		return errors.Join(json.NewEncoder(out).Encode(report), err) // also after an error: the report says what was done
	}
	return errUsage
}

// newWorker returns what the worker runs: all dispatchers and listeners of events/outbox.yaml.
func newWorker(pool *pgxpool.Pool) (*worker.Worker, error) {
	ordersDispatcher, err := events.NewOrdersDispatcher(pool, &events.OrdersHandler{Shipping: shipping.NewDesk(pool)}, queue.Config{})
	if err != nil {
		return nil, err
	}
	return worker.New(
		worker.Part{Name: "orders", Runner: ordersDispatcher},
	)
}
