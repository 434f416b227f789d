// Command demo puts minichat under load, injects failures, and then accounts for every event.
//
// It starts its own PostgreSQL server with durable settings, and a Kafka broker. Four producers start and finalise chat
// turns: some transactions are rolled back, and some turns are finalised twice. Two worker processes deliver the events of
// finalised turns to handlers, some of which are slow, fail once or always fail. They also run the listeners of the turns
// that were started: one writes to the database, one shows, and one sends to Kafka, from where another service reads. One
// worker is killed with SIGKILL while its handlers run, and started again, and the other service dies once before it has
// committed its offsets. The account at the end compares the records of producers and handlers with the tables: every
// committed event must be delivered or dead, no event that was rolled back may have reached a handler, and each listener
// and the other service must have every started turn.
//
// Exit status: 0 if the account is correct, 1 if it is not, 2 for wrong usage, 3 if the demo could not run, 130 after an
// interrupt.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/outboxgen/outboxgen/worker/signals"
)

const (
	exitFine = iota
	exitWrong
	exitUsage
	exitBroken
	exitInterrupted = 128 + int(syscall.SIGINT)
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == workCommand {
		os.Exit(workMain(os.Args[2], os.Args[3]))
	}
	ctx := signals.Context(context.Background())
	os.Exit(demoMain(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func demoMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	turns := flags.Int("turns", 3000, "how many chat `turns` to start, at least 200")
	stay := flags.Bool("stay", false, "keep the dashboard open until Ctrl-C")
	asJSON := flags.Bool("json", false, "print the account as JSON")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitFine
	case err != nil:
		return exitUsage
	case flags.NArg() > 0 || *turns < 200:
		_, _ = fmt.Fprintln(stderr, "demo: want no arguments, and -turns of at least 200")
		return exitUsage
	}

	code := exitBroken
	shown := false
	err := runDemo(ctx, options{*turns, *stay}, stderr, func(account Account) error {
		if err := account.write(stdout, *asJSON); err != nil {
			return fmt.Errorf("print account: %w", err)
		}
		shown, code = true, exitFine
		if !account.Correct {
			code = exitWrong
		}
		return nil
	})
	switch {
	case ctx.Err() != nil && !shown:
		_, _ = fmt.Fprintln(stderr, "demo: interrupted, everything is cleaned up")
		return exitInterrupted
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "demo:", err)
		return exitBroken
	}
	return code
}
