package queue_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/deliveryhistory"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// childVariable holds the orders of a child process.
const childVariable = "OUTBOXGEN_TEST_CHILD"

// orders say what a child runs. A child is a separate process with one dispatcher of jobs/one. It writes a line of JSON
// for each log line and for each handler that starts, and ends on SIGTERM.
type orders struct {
	URL, History, Worker             string
	Lease, Poll                      time.Duration
	Concurrency, BatchSize, Attempts int
	Batch                            int // of TopicSpec.Batch; 0 is none
	// Handler is "work", "hang" or "poison". "work" takes some random microseconds. "hang" waits for its context or a
	// line of input, "ok" or "fail", which is its result. "poison" works like "work", but ends the process if the
	// payload's secret is poison, in a batch when what other calls had is settled. "whole" is "hang" for a batch, which has one result.
	Handler string
}

// TestChild is not a test but the main function of the child processes.
func TestChild(t *testing.T) {
	text := os.Getenv(childVariable)
	if text == "" {
		return
	}
	var o orders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	pool, err := pgxpool.New(ctx, o.URL)
	require.NoError(t, err)
	defer pool.Close()
	record, err := deliveryhistory.Open(o.History)
	require.NoError(t, err)
	defer func() { _ = record.Close() }()
	say := slog.New(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug}))
	input := make(chan string)
	if o.Handler == "hang" || o.Handler == "whole" {
		go func() {
			for in := bufio.NewScanner(os.Stdin); in.Scan(); {
				input <- in.Text()
			}
		}()
	}
	handle := func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
		if err := record.Delivery(d.ID, d.Attempt, o.Worker); err != nil {
			return err
		}
		say.Info("handling", "n", d.Payload.N, "attempt", d.Attempt)
		switch {
		case o.Handler == "hang":
			if <-input == "fail" {
				return errors.New("failed as told")
			}
		case d.Payload.Secret == "poison":
			os.Exit(7)
		case rand.IntN(2) == 0:
			<-time.After(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
		}
		return nil
	}
	handler := runtimetest.OnJob(runtimetest.JobTopic("one"), handle)
	if o.Batch > 0 {
		handler = onBatch(batched(o.Batch, 0), &batchCalls{
			fn: func(ctx context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
				if o.Handler == "whole" {
					say.Info("handling", "events", len(ds))
					if <-input == "fail" {
						return errors.New("failed as told")
					}
					return nil
				}
				if poisoned(ds) {
					onlyLeases(ctx, t, pool, len(ds))
				}
				var failed outbox.BatchError
				for _, d := range ds {
					failed.Fail(d.Event, handle(ctx, d))
				}
				return failed.Err()
			},
		})
	}
	d := runtimetest.Dispatcher(t, pool, queue.Config{
		LeaseDuration: o.Lease, PollInterval: o.Poll, Concurrency: o.Concurrency, BatchSize: o.BatchSize, Logger: say,
	}, handler)
	require.NoError(t, d.Run(ctx))
}

func newChild(t testing.TB, pool *pgxpool.Pool, o orders) *runtimetest.Child {
	t.Helper()
	o.URL = runtimetest.ChildURL(t, pool)
	return runtimetest.Spawn(t, "TestChild", childVariable, o)
}

// onlyLeases waits until no more than n events are leased.
func onlyLeases(ctx context.Context, t *testing.T, pool *pgxpool.Pool, n int) {
	for leased := n + 1; leased > n; {
		require.NoError(t, pool.QueryRow(ctx, "SELECT count(*) FROM outbox.queue WHERE locked_until > now()").Scan(&leased))
	}
}
