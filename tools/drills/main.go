// Command drills is the shop of the drills in this folder: writers that place orders and enqueue their events, and a worker
// that handles them. The scripts start it beside a PostgreSQL that they break, and compare what it has recorded with what
// the database says.
//
//	drills write -db URL -dir DIR [-writers 4] [-orders N] [-pause 5ms] [-open]
//	drills work  -db URL -dir DIR [-inbox URL] [-listen URL] [-poll]
//
// Both end at SIGTERM, write also after its orders unless -open is given. They append a line per order to files of DIR, which stand for what the
// world outside of the database knows:
//
//	acknowledged  the commit was confirmed to the writer
//	unknown       the commit failed: nobody knows whether it happened
//	delivered     the handler of the queue topic had its effect
//	heard         the listener of the log topic had its effect
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/worker/signals"
)

func main() {
	if err := run(signals.Context(context.Background()), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "drills:", err)
		os.Exit(1)
	}
}

// options are those of both commands.
type options struct {
	db, dir, inbox, listen string
	writers, orders        int
	pause                  time.Duration
	poll, open             bool
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: drills write, or drills work")
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&o.db, "db", "", "connection string of the shop's database")
	flags.StringVar(&o.dir, "dir", "", "folder of the records")
	flags.StringVar(&o.inbox, "inbox", "", "connection string of a database with an inbox, where each order is billed once")
	flags.StringVar(&o.listen, "listen", "", "connection string for LISTEN, if that of the database leads through a pooler")
	flags.BoolVar(&o.poll, "poll", false, "poll for events, and do not wait for notifications")
	flags.BoolVar(&o.open, "open", false, "open a connection for each writer before the first order, and keep it until SIGTERM")
	flags.IntVar(&o.writers, "writers", 4, "how many write at the same time, each with a connection")
	flags.IntVar(&o.orders, "orders", 0, "end after so many orders; 0 means at SIGTERM")
	flags.DurationVar(&o.pause, "pause", 5*time.Millisecond, "how long a writer waits after each order")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "write":
		return write(ctx, o)
	case "work":
		slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
		return work(ctx, o)
	}
	return fmt.Errorf("%q is not a command", args[0])
}

// connect makes a pool of up to n connections. Through a pooler, statements must not be prepared.
func connect(ctx context.Context, url string, n int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(n)
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	return pgxpool.NewWithConfig(ctx, cfg)
}

// record is a file to which lines are appended. Any goroutine may do it.
type record struct{ file *os.File }

func openRecord(dir, name string) (record, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	return record{f}, err
}

func (r record) add(line string) error {
	_, err := r.file.WriteString(line + "\n")
	return err
}
