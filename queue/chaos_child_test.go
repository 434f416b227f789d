package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// chaosVariable holds the orders of a worker process of a campaign of limits.
const chaosVariable = "OUTBOXGEN_TEST_LIMITS_CHILD"

// chaosOrders say what a worker process runs.
type chaosOrders struct {
	URL, Worker string
	Edition     int
	Fast        bool // also takes topics with wide limits
	Drain       bool // drains for a second, and ends
}

// recordedBatch is recorded for a topic with batches.
func recordedBatch(pool *pgxpool.Pool, topic outbox.Topic[runtimetest.Job], worker string, most time.Duration) queue.Handler {
	return onBatch(topic, &batchCalls{fn: func(ctx context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
		began := realNow()
		var nos []int64
		for _, d := range ds {
			no, err := recordCall(ctx, pool, &d.Event, d.TenantID.UUID.String(), worker, began)
			if err != nil {
				return err
			}
			nos = append(nos, no)
		}
		err := attempt(ctx, pool, most, nos, ds[0].Payload.N)
		var failed outbox.BatchError
		for _, d := range ds {
			failed.Fail(d.Event, err) // otherwise calls with halves would follow, which belong to the same attempts
		}
		return failed.Err()
	}})
}

// recorded returns a handler of topic that records its calls in the table audit.calls. It takes a random time, and fails now
// and then, some events for good.
func recorded(pool *pgxpool.Pool, topic outbox.Topic[runtimetest.Job], worker string, most time.Duration) queue.Handler {
	return runtimetest.OnJob(topic, func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
		began := realNow()
		no, err := recordCall(ctx, pool, &d.Event, d.Payload.Secret, worker, began)
		if err != nil {
			return err
		}
		return attempt(ctx, pool, most, []int64{no}, d.Payload.N)
	})
}

// attempt takes some time, records the end of calls, and returns what came of them.
func attempt(ctx context.Context, pool *pgxpool.Pool, most time.Duration, calls []int64, n int64) error {
	chance := uuid.New() // of this attempt
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(most * time.Duration(chance[0]) / 256):
	}
	if _, err := pool.Exec(ctx, "UPDATE audit.calls SET ended = clock_timestamp() WHERE no = ANY ($1)", calls); err != nil {
		return err
	}
	switch {
	case n%29 == 0 && chance[1] < 128:
		return outbox.Permanent(errors.New("never"))
	case chance[1] < 16:
		return errors.New("once more")
	}
	return nil
}

// realNow is the time of the machine, also in a process whose time.Now jumps.
func realNow() time.Time {
	var at syscall.Timeval
	_ = syscall.Gettimeofday(&at) // it cannot fail
	return time.Unix(at.Unix())
}

// recordCall records a call, as soon as the server answers.
func recordCall(ctx context.Context, pool *pgxpool.Pool, e *outbox.Event, key, worker string, began time.Time) (no int64, err error) {
	for {
		err := pool.QueryRow(ctx, "INSERT INTO audit.calls (id, attempt, topic, worker, key, began, clock) VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING no",
			e.ID, e.Attempt, e.Topic, worker, key, began, time.Now()).Scan(&no)
		if err == nil {
			return no, nil
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(20 * time.Millisecond): // the server restarts
		}
	}
}

// TestChaosChild is not a test but the main function of the worker processes.
func TestChaosChild(t *testing.T) {
	text := os.Getenv(chaosVariable)
	if text == "" {
		return
	}
	var o chaosOrders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	pool, records := chaosPool(t, o.URL), chaosPool(t, o.URL)
	cfg := queue.Config{
		LeaseDuration: chaosLease, PollInterval: 100 * time.Millisecond, Concurrency: 8, BatchSize: 20, ShutdownTimeout: 3 * time.Second,
		Logger:     slog.New(slog.NewJSONHandler(os.Stdout, nil)),
		Publishers: map[string]publish.Publisher{"hook": &recordedHooks{pool: records, worker: o.Worker, most: 50 * time.Millisecond}},
	}
	if o.Fast {
		cfg.Concurrency, cfg.BatchSize = 32, 200
	}
	var handlers []queue.Handler
	for _, topic := range chaosTopics(o.Edition, o.Fast) {
		handlers = append(handlers, topic.handler(records, o.Worker))
	}
	d := runtimetest.Dispatcher(t, pool, cfg, handlers...)
	if !o.Drain {
		require.NoError(t, d.Run(ctx))
		return
	}
	if _, err := d.DrainUpTo(ctx, outbox.DrainLimit{Time: time.Second}); err != nil {
		t.Log(err) // the server may restart
	}
}

func chaosPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	cfg.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}
