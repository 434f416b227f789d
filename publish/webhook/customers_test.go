package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/webhook"
	"github.com/outboxgen/outboxgen/queue"
)

var stepBilled = outbox.NewTopic[step](outbox.TopicSpec{
	Namespace: "users", Name: "step_billed", Version: 1, Retry: outbox.Retry{MaxAttempts: 25, BaseDelay: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond},
})

// TestWebhookPerCustomer: each of 100 customers has a webhook with a secret of its own, in a table. 10 of them hang, one is
// not in the table, and one has an address that is not valid. The events of the others are delivered meanwhile. When the rows
// are corrected, so are the events of those that hung and of the one with the wrong address.
func TestWebhookPerCustomer(t *testing.T) {
	t.Parallel()
	const each = 5
	pool := outboxtest.Postgres(t)
	works, hangs := newReceiver(t, nil), newReceiver(t, hang)
	secretOf := func(i int) string { return newSecret(fmt.Sprintf("%03d", i), 10) }
	_, err := pool.Exec(t.Context(), "CREATE TABLE webhooks (customer text PRIMARY KEY, url text NOT NULL, secret text NOT NULL)")
	require.NoError(t, err)
	var steps []step
	for i := range 101 {
		customer, url := fmt.Sprintf("customer-%03d", i), works.url
		switch {
		case i < 10:
			url = hangs.url
		case i == 10:
			url = "not a URL"
		}
		for n := range each {
			steps = append(steps, step{Key: customer, N: n})
		}
		if i < 100 {
			_, err := pool.Exec(t.Context(), "INSERT INTO webhooks VALUES ($1, $2, $3)", customer, url, secretOf(i))
			require.NoError(t, err)
		}
	}
	p := newLookup(t, func(ctx context.Context, customer string) (e webhook.Endpoint, err error) {
		e.Secrets = make([]string, 1)
		err = pool.QueryRow(ctx, "SELECT url, secret FROM webhooks WHERE customer = $1", customer).Scan(&e.URL, &e.Secrets[0])
		if errors.Is(err, pgx.ErrNoRows) {
			err = webhook.ErrNoEndpoint
		}
		return e, err
	}, func(c *webhook.Config) { c.Timeout, c.LookupTTL = time.Hour, 50*time.Millisecond })
	d, err := queue.NewDispatcher(pool, queue.Config{
		Logger: quiet(), BatchSize: 50, PollInterval: 50 * time.Millisecond, Publishers: map[string]publish.Publisher{"webhook": p},
	}, queue.Publish(stepBilled, publish.Publication{Broker: "webhook", DestinationOf: func(v any) string { return v.(*step).Key }}))
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := stepBilled.EnqueueMany(t.Context(), tx, steps)
		return err
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	count := func(where string) (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM outbox.event_status WHERE "+where).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return count("status = 'delivered'") == 89*each }, patience, 20*time.Millisecond)
	require.Eventually(t, func() bool { return count("status = 'dead' AND last_error LIKE '%it has no endpoint'") == each }, patience, 20*time.Millisecond)
	require.Empty(t, hangs.requests())

	_, err = pool.Exec(t.Context(), "UPDATE webhooks SET url = $1", works.url)
	require.NoError(t, err)
	hangs.stop() // the requests under way fail
	require.Eventually(t, func() bool { return count("status = 'delivered'") == 100*each }, patience, 20*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	got := make(map[string]int)
	for _, q := range works.requests() {
		var i, n int
		_, err := fmt.Sscanf(string(q.body), `{"n": %d, "key": "customer-%d"}`, &n, &i)
		require.NoError(t, err)
		require.NoError(t, verify(t, secretOf(i), q), "each customer has its own secret")
		got[fmt.Sprint(i)]++
	}
	require.Len(t, got, 100)
}
