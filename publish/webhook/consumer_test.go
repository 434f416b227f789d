package webhook_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/inbox"
)

// step is one step of a key. Steps count from 0.
type step struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

// delivery is a request that the consumer has yet to write to its table.
type delivery struct {
	id   uuid.UUID
	step step
	done chan error
}

// consumer is a service that receives events. It checks their signatures, and writes all waiting events in one transaction
// through its inbox.
type consumer struct {
	pool       *pgxpool.Pool
	inbox      *inbox.Inbox
	hook       *standardwebhooks.Webhook
	deliveries chan delivery
	fault      func(n int64) fault // of the n-th request
	requests   atomic.Int64
	again      atomic.Int64 // deliveries of events that were handled before
	invalid    atomic.Int64 // requests that the publisher should not send
}

// fault is a fault of the consumer at a request.
type fault struct {
	answer http.HandlerFunc // nil: no fault
	after  bool             // the fault happens after the effect, so the sender does not learn of the effect
}

func newConsumer(t testing.TB, pool *pgxpool.Pool, fault func(n int64) fault) *consumer {
	_, err := pool.Exec(t.Context(), "CREATE TABLE steps (no bigint GENERATED ALWAYS AS IDENTITY, event uuid, key text, n int)")
	require.NoError(t, err)
	in, err := inbox.New(inbox.Config{Group: "crm"})
	require.NoError(t, err)
	hook, err := standardwebhooks.NewWebhook(secret)
	require.NoError(t, err)
	return &consumer{pool: pool, inbox: in, hook: hook, deliveries: make(chan delivery), fault: fault}
}

func (c *consumer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	d := delivery{done: make(chan error, 1)}
	if d.id, err = uuid.Parse(q.Header.Get("ce-id")); err == nil {
		err = json.Unmarshal(body, &d.step)
	}
	if err != nil || c.hook.Verify(body, q.Header) != nil || q.Header.Get("ce-partitionkey") != d.step.Key {
		c.invalid.Add(1)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	f := c.fault(c.requests.Add(1))
	status := &statusWriter{ResponseWriter: w}
	if f.answer != nil && !f.after {
		f.answer(status, q)
		return
	}
	select {
	case c.deliveries <- d:
	case <-q.Context().Done(): // the test failed, and nobody takes deliveries any more
		return
	}
	switch err := <-d.done; {
	case err != nil:
		w.WriteHeader(http.StatusInternalServerError)
	case f.answer != nil:
		f.answer(status, q)
	}
}

// run writes deliveries until ctx ends and there are no more deliveries.
func (c *consumer) run(ctx context.Context) {
	for {
		var batch []delivery
		select {
		case d := <-c.deliveries:
			batch = append(batch, d)
		case <-ctx.Done():
			return
		}
		for more := true; more; {
			select {
			case d := <-c.deliveries:
				batch = append(batch, d)
			default:
				more = false
			}
		}
		err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.handle(ctx, tx, batch) })
		for _, d := range batch {
			d.done <- err
		}
	}
}

func (c *consumer) handle(ctx context.Context, tx pgx.Tx, batch []delivery) error {
	const insert = "INSERT INTO steps (event, key, n) SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[])"
	ids := make([]uuid.UUID, len(batch))
	for i, d := range batch {
		ids[i] = d.id
	}
	handled, err := c.inbox.OnceMany(ctx, tx, ids, func(ctx context.Context, fresh []int) error {
		var events []uuid.UUID
		var keys []string
		var ns []int
		for _, i := range fresh {
			events, keys, ns = append(events, ids[i]), append(keys, batch[i].step.Key), append(ns, batch[i].step.N)
		}
		_, err := tx.Exec(ctx, insert, events, keys, ns)
		return err
	})
	c.again.Add(int64(len(batch) - handled))
	return err
}

// steps returns how many steps the consumer has.
func (c *consumer) steps(t testing.TB) (n int) {
	require.NoError(t, c.pool.QueryRow(t.Context(), "SELECT count(*) FROM steps").Scan(&n))
	return n
}

// requireSteps fails unless each key has its steps once and in order.
func (c *consumer) requireSteps(t testing.TB, keys, each int) {
	t.Helper()
	rows, err := c.pool.Query(t.Context(), "SELECT array_agg(n ORDER BY no) FROM steps GROUP BY key")
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[[]int])
	require.NoError(t, err)
	require.Len(t, got, keys)
	want := make([]int, each)
	for n := range want {
		want[n] = n
	}
	for _, ns := range got {
		require.Equal(t, want, ns)
	}
}

const patience = 5 * time.Minute
