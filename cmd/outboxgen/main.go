// Command outboxgen generates type-safe transactional-outbox code from an outbox.yaml, and creates and
// maintains the tables that the code uses. It is also a tool of go vet. See outboxgen help.
package main

import (
	"context"
	"os"

	"github.com/outboxgen/outboxgen/cmd/outboxgen/internal/cli"
	"github.com/outboxgen/outboxgen/internal/tool/analyzers"
	"github.com/outboxgen/outboxgen/worker/signals"
)

func main() {
	if analyzers.Invoked(os.Args[1:]) {
		analyzers.Main()
	}
	ctx := signals.Context(context.Background())
	os.Exit(cli.Run(ctx, cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}, os.Args[1:]))
}
