package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
)

var stepTaken = outbox.NewTopic[step](outbox.TopicSpec{
	Namespace: "users", Name: "step_taken", Version: 1, Log: true,
	Keys: func(v any) outbox.Keys {
		s := v.(*step)
		return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", s.Key))}
	},
})

// Faults of the consumer, one after another: a quick one every hundred requests, a slow one every two thousand.
var (
	quickFaults = []fault{
		{answer: status(http.StatusInternalServerError)},
		{answer: status(http.StatusInternalServerError), after: true},
		{answer: raw("")},
		{answer: raw("HTTP/1.1 20"), after: true},
		{answer: status(http.StatusTemporaryRedirect, "Location", "http://example.com/")},
		{answer: raw(""), after: true},
		{answer: status(http.StatusNotFound)},
	}
	slowFaults = []fault{
		{answer: hang},
		{answer: status(http.StatusTooManyRequests, "Retry-After", "1")},
		{answer: hang, after: true},
		{answer: status(http.StatusInternalServerError, "Retry-After", "1")},
		{answer: status(http.StatusBadGateway), after: true},
	}
)

func faultOf(n int64) fault {
	switch {
	case n%2000 == 0:
		return slowFaults[n/2000%int64(len(slowFaults))]
	case n%100 == 0:
		return quickFaults[n/100%int64(len(quickFaults))]
	}
	return fault{}
}

// TestNothingIsLostUnderFaults: a listener publishes 20,000 events to a consumer that fails in all the ways of HTTP, before or
// after the effect, and is away for a while. In the end the effect of each event is there once, in order per key.
func TestNothingIsLostUnderFaults(t *testing.T) {
	t.Parallel()
	const keys, each = 400, 50
	pool := outboxtest.Postgres(t)
	outage := make(chan struct{})
	c := newConsumer(t, pool, func(n int64) fault {
		if n == keys*each/2 {
			close(outage)
		}
		return faultOf(n)
	})
	h := &host{t: t, handler: c}
	h.start()
	t.Cleanup(h.stop)
	p := newPublisher(t, h.url, func(c *webhook.Config) {
		c.Timeout, c.MaxRetryAfter = 2*time.Second, 300*time.Millisecond
	})
	l, err := listener.New(pool, listener.Spec{
		Name: "relay", Retry: outbox.Retry{MaxAttempts: 1000, BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond},
	}, listener.Config{
		BatchSize: 500, Logger: quiet(), Publishers: map[string]publish.Publisher{"webhook": p},
	}, listener.Publish(stepTaken, publish.Publication{Broker: "webhook", Destination: "crm"}))
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	consuming, stopConsuming := context.WithCancel(t.Context())
	var runErr, putErr error
	parts.Go(func() { runErr = l.Run(ctx) })
	parts.Go(func() { putErr = putSteps(ctx, pool, keys, each) })
	parts.Go(func() {
		select {
		case <-outage:
			h.stop()
			h.start()
		case <-ctx.Done():
		}
	})
	consumed := make(chan struct{})
	go func() {
		defer close(consumed)
		c.run(consuming)
	}()
	require.Eventually(t, func() bool { return c.steps(t) >= keys*each }, patience, 50*time.Millisecond)
	require.Eventually(t, func() bool { return idle(t, pool) }, patience, 50*time.Millisecond)
	cancel()
	parts.Wait()
	h.stop()
	stopConsuming()
	<-consumed

	require.NoError(t, runErr)
	require.NoError(t, putErr)
	c.requireSteps(t, keys, each)
	require.Zero(t, c.invalid.Load())
	require.Greater(t, c.again.Load(), int64(50), "the faults must cause duplicates, which the inbox removes")
	var dead int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM outbox.dead_letters").Scan(&dead))
	require.Zero(t, dead)
	t.Logf("%d requests for %d events, %d of them duplicates", c.requests.Load(), keys*each, c.again.Load())
}

// putSteps enqueues the steps of all keys, one step of each key per transaction. Every eighth transaction is rolled back and
// repeated.
func putSteps(ctx context.Context, pool *pgxpool.Pool, keys, each int) error {
	errUndone := errors.New("undone")
	steps := make([]step, keys)
	for n := range each {
		for k := range steps {
			steps[k] = step{Key: fmt.Sprintf("k%d", k), N: n}
		}
		for tries := 0; ; tries++ {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := stepTaken.EnqueueMany(ctx, tx, steps); err != nil {
					return err
				}
				if n%8 == 0 && tries == 0 {
					return errUndone
				}
				return nil
			})
			if err == nil {
				break
			}
			if !errors.Is(err, errUndone) {
				return err
			}
		}
	}
	return nil
}

// idle reports whether the listener has finished all events.
func idle(t testing.TB, pool *pgxpool.Pool) (idle bool) {
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT bool_and(retry_count = 0 AND ahead_seqs = '{}') FROM outbox.listeners").Scan(&idle))
	return idle
}
