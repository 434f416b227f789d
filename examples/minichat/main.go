// Command minichat plays a few turns of a chat and shows the results: the quota, the events, and the usage ledger that is
// built from the events. It uses the database DATABASE_URL. Without it the program starts a private PostgreSQL server,
// which ends with it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/minichat/chat"
	"github.com/outboxgen/outboxgen/examples/minichat/database"
	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/examples/minichat/ledger"
	"github.com/outboxgen/outboxgen/internal/testing/pgserver"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
	"github.com/outboxgen/outboxgen/worker/signals"
)

func main() {
	ctx := signals.Context(context.Background())
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "minichat:", err)
		os.Exit(1)
	}
}

// run plays the chat in the database at url, or on a private server if url is empty.
func run(ctx context.Context, url string, out io.Writer) (err error) {
	if url == "" {
		server, startErr := pgserver.Start(pgserver.Options{Durable: true})
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		url = server.URL()
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()
	if err := database.Migrate(ctx, pool); err != nil {
		return err
	}
	books := ledger.New(pool)
	told := make(chan events.TurnFinalized)
	dispatching, stop := context.WithCancel(ctx)
	defer stop()
	handler := announcer{&events.MiniChatHandler{Ledger: books}, told, dispatching.Done()}
	dispatcher, err := events.NewMiniChatDispatcher(pool, handler, queue.Config{})
	if err != nil {
		return err
	}

	// The dispatcher runs until the service is done, and then finishes the events that it holds.
	stopped := make(chan error, 1)
	go func() { stopped <- dispatcher.Run(dispatching) }()
	playErr := play(ctx, chat.NewService(pool), books, told, out)
	stop()
	return errors.Join(playErr, <-stopped)
}

// announcer passes events on and announces the handled ones, as long as somebody listens.
type announcer struct {
	events.MiniChatHandlers
	told chan<- events.TurnFinalized
	over <-chan struct{}
}

// HandleTurnFinalized handles the event, then announces it.
func (a announcer) HandleTurnFinalized(ctx context.Context, d outbox.Delivery[events.TurnFinalized]) error {
	if err := a.MiniChatHandlers.HandleTurnFinalized(ctx, d); err != nil {
		return err
	}
	select {
	case a.told <- d.Payload:
	case <-a.over:
	}
	return nil
}
