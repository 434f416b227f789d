// Command demo puts minichat under load, injects failures, and then accounts for every event.
//
// It starts its own PostgreSQL server with durable settings. Four producers start and finalise chat turns: some
// transactions are rolled back, and some turns are finalised twice. Two dispatcher processes deliver the events to
// handlers, some of which are slow, fail once or always fail. One dispatcher is killed with SIGKILL while its handlers
// run, and started again. The account at the end compares the records of producers and handlers with the table of events:
// every committed event must be delivered or dead, and no event that was rolled back may have reached a handler.
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
	"os/signal"
	"syscall"
)

const (
	exitFine = iota
	exitWrong
	exitUsage
	exitBroken
	exitInterrupted = 128 + int(syscall.SIGINT)
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == dispatchCommand {
		os.Exit(dispatchMain(os.Args[2]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := demoMain(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
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
