package listener_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// listenerVariable holds the orders of a child process with a listener.
const listenerVariable = "OUTBOXGEN_TEST_LISTENER"

// listenerOrders say how a child runs the listener "ears". The child writes a line of JSON for each log line and for
// each handler that starts, and ends on SIGTERM.
type listenerOrders struct {
	URL           string
	Transactional bool
	Lease, Poll   time.Duration
	BatchSize     int
	Concurrency   int
	Shards        int
	Attempts      int
	ParkKeys      bool
	Batch         outbox.Batch
	Polls         bool // polls instead of using the doorbell
	// Hang makes the handler wait for a line of input, "ok" or "fail", which is its result. Otherwise it works for some
	// random microseconds. It ends the process at an event of the key "poison" or with a negative N, and at the second
	// attempt of one of the key "bomb". The first attempts of "bomb" and "weak" fail.
	Hang bool
}

// TestListenerChild is not a test but the main function of the child processes.
func TestListenerChild(t *testing.T) {
	text := os.Getenv(listenerVariable)
	if text == "" {
		return
	}
	var o listenerOrders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	pool, err := pgxpool.New(ctx, o.URL)
	require.NoError(t, err)
	defer pool.Close()
	c := &listenerChild{o: o, say: slog.New(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug})), input: make(chan string)}
	if o.Hang {
		go func() {
			for in := bufio.NewScanner(os.Stdin); in.Scan(); {
				c.input <- in.Text()
			}
		}()
	}
	spec := listener.Spec{
		Name: "ears", Shards: o.Shards, ParkKeys: o.ParkKeys, Batch: o.Batch,
		Retry: outbox.Retry{MaxAttempts: o.Attempts, BaseDelay: time.Millisecond, MaxDelay: 10 * time.Millisecond},
	}
	cfg := listener.Config{
		BatchSize: o.BatchSize, Concurrency: o.Concurrency, LeaseDuration: o.Lease, PollInterval: o.Poll, Logger: c.say,
	}
	if o.Polls {
		cfg.Wake, cfg.MaxPollInterval = outbox.WakePoll, o.Poll
	}
	handler := listener.Handle(runtimetest.SaidTopic, c, c.handle)
	if o.Transactional {
		handler = listener.HandleTx(runtimetest.SaidTopic, c, c.handleTx)
	} else {
		c.pool = pool
	}
	if o.Batch.Size > 0 {
		handler = c.batches(o.Transactional)
	}
	l, err := listener.New(pool, spec, cfg, handler)
	require.NoError(t, err)
	require.NoError(t, l.Run(ctx))
}

// batches returns the handler of batches of c. It handles one event after the other, and says beforehand how many it
// has.
func (c *listenerChild) batches(transactional bool) listener.Handler {
	if transactional {
		return listener.HandleTxBatch(runtimetest.SaidTopic, c, func(ctx context.Context, tx pgx.Tx, ds []outbox.Delivery[runtimetest.Said]) error {
			c.say.Info("batch", "size", len(ds))
			for _, d := range ds {
				if err := c.handleTx(ctx, tx, d); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return listener.HandleBatch(runtimetest.SaidTopic, c, func(ctx context.Context, ds []outbox.Delivery[runtimetest.Said]) error {
		c.say.Info("batch", "size", len(ds))
		for _, d := range ds {
			if err := c.handle(ctx, d); err != nil {
				return err
			}
		}
		return nil
	})
}

// listenerChild is the handler of a child.
type listenerChild struct {
	o     listenerOrders
	say   *slog.Logger
	pool  *pgxpool.Pool
	input chan string
}

func (c *listenerChild) handle(ctx context.Context, d outbox.Delivery[runtimetest.Said]) error {
	if err := c.work(ctx, d, func() {}); err != nil {
		return err
	}
	_, err := c.pool.Exec(ctx, runtimetest.EffectSQL, d.ID, d.Payload.Key, d.Payload.N, d.Attempt)
	return err
}

func (c *listenerChild) handleTx(ctx context.Context, tx pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
	if _, err := tx.Exec(ctx, runtimetest.EffectSQL, d.ID, d.Payload.Key, d.Payload.N, d.Attempt); err != nil {
		return err
	}
	return c.work(ctx, d, func() { _, _ = tx.Exec(ctx, "SELECT 1") })
}

// work is the handler. While it hangs it calls busy regularly.
func (c *listenerChild) work(ctx context.Context, d outbox.Delivery[runtimetest.Said], busy func()) error {
	c.say.Info("handling", "key", d.Payload.Key, "n", d.Payload.N, "attempt", d.Attempt)
	switch {
	case d.Payload.Key == "poison", d.Payload.N < 0, d.Payload.Key == "bomb" && d.Attempt > 1:
		os.Exit(7)
	case d.Payload.Key == "bomb", strings.HasPrefix(d.Payload.Key, "weak") && d.Attempt == 1:
		return runtimetest.ErrHandler
	case c.o.Hang:
		told := c.hang(ctx, busy)
		if told == "fail" {
			return errors.New("failed as told")
		}
	case rand.IntN(2) == 0:
		<-time.After(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
	}
	return nil
}

// hang waits for a line of input, even if its context is cancelled.
func (c *listenerChild) hang(ctx context.Context, busy func()) string {
	tick := time.NewTicker(c.o.Lease / 5)
	defer tick.Stop()
	for {
		select {
		case told := <-c.input:
			return told
		case <-tick.C:
			busy()
		case <-ctx.Done():
			c.say.Info("cancelled", "cause", context.Cause(ctx).Error())
			return <-c.input
		}
	}
}

func newListenerChild(t testing.TB, pool *pgxpool.Pool, o listenerOrders) *runtimetest.Child {
	t.Helper()
	o.URL = runtimetest.ChildURL(t, pool)
	return runtimetest.Spawn(t, "TestListenerChild", listenerVariable, o)
}
