package signals_test

import (
	"context"
	"fmt"
	"os"

	"github.com/outboxgen/outboxgen/worker/signals"
)

// The main function of a program that works until it is told to stop, and then ends with 0.
func Example() {
	ctx := signals.Context(context.Background())
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run stands for the work, such as the Run of a worker or of a consumer. It returns nil when it was told to stop.
func run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
