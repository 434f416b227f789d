// Command orders takes orders while no dispatcher runs, then starts one and prints how the backlog
// drains. It needs a PostgreSQL: the one of DATABASE_URL, else it starts one for itself.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/examples/orders/database"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	pool, closeAll, err := database.Open(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	return demo{pool: pool, shop: uuid.New(), out: os.Stdout}.run(ctx, 5000)
}
