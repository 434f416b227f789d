// Command minichat plays a few turns of a chat and shows what becomes of them: quota, events and the
// usage ledger that the events keep up. The database is the one of DATABASE_URL; without it a private
// PostgreSQL server runs for as long as the program does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/examples/minichat/chat"
	"github.com/outboxgen/outboxgen/examples/minichat/database"
	"github.com/outboxgen/outboxgen/examples/minichat/events"
	"github.com/outboxgen/outboxgen/examples/minichat/ledger"
	"github.com/outboxgen/outboxgen/internal/pgserver"
	"github.com/outboxgen/outboxgen/outbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Getenv("DATABASE_URL"), os.Stdout)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "minichat:", err)
		os.Exit(1)
	}
}

// run plays the chat on the database of url, or on a private server if that is empty.
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
	dispatcher, err := events.NewMiniChatDispatcher(pool, handler, outbox.DispatcherConfig{})
	if err != nil {
		return err
	}

	// The dispatcher runs beside the service until the service is done, then finishes what it holds.
	stopped := make(chan error, 1)
	go func() { stopped <- dispatcher.Run(dispatching) }()
	playErr := play(ctx, chat.NewService(pool), books, told, out)
	stop()
	return errors.Join(playErr, <-stopped)
}

// announcer passes events on and tells when they are handled, for as long as somebody listens.
type announcer struct {
	events.MiniChatHandlers
	told chan<- events.TurnFinalized
	over <-chan struct{}
}

// HandleTurnFinalized has the event handled, then announces it.
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
