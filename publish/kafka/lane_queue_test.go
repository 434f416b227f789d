package kafka_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
	"github.com/outboxgen/outboxgen/queue"
)

// TestQueueTopicsAreNotFenced: a transactional id has no effect on the events of queue topics, which have no order. A publisher
// with one may serve both kinds of topics. So the late record of an earlier process can be the last one of its key, as
// docs/run/delivery.md says.
func TestQueueTopicsAreNotFenced(t *testing.T) {
	t.Parallel()
	c, pool := newCluster(t, kfake.SeedTopics(1, "one")), pgtest.Database(t)
	due := outbox.NewTopic[renamed](outbox.TopicSpec{Namespace: "relay", Name: "due", Version: 1, Keys: func(v any) outbox.Keys {
		return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", v.(*renamed).Key))}
	}})
	enqueue := func(n int) {
		t.Helper()
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := due.EnqueueMany(t.Context(), tx, []renamed{{Key: "a", N: n}})
			require.NoError(t, err)
		})
	}
	dispatcher := func(p *kafka.Publisher) *queue.Dispatcher {
		t.Helper()
		d, err := queue.NewDispatcher(pool, queue.Config{
			Logger: slog.New(slog.DiscardHandler), Publishers: map[string]publish.Publisher{"kafka": p}, ShutdownTimeout: 50 * time.Millisecond,
			Retry: outbox.Retry{BaseDelay: time.Hour},
		}, queue.Publish(due, publish.Publication{Broker: "kafka", Destination: "one"}))
		require.NoError(t, err)
		return d
	}
	c.ControlKey(int16(kmsg.InitProducerID), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if id := r.(*kmsg.InitProducerIDRequest).TransactionalID; id != nil {
			t.Errorf("transactional id %s", *id)
		}
		return nil, nil, false
	})
	before, after := c.publisher(t, isFenced), c.publisher(t, isFenced)

	seen, arrive := c.holdProduce()
	enqueue(1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- dispatcher(before).Run(ctx) }()
	pgtest.Receive(t, seen, "the request")
	stop()
	pgtest.Receive(t, stopped, "the end of Run")

	// The attempt has failed, and its backoff is over. Or the call had not returned, and the lease has run out.
	pgtest.Execute(t, pool, `UPDATE outbox.queue
		SET next_attempt_at = now(), locked_until = CASE WHEN locked_until IS NOT NULL THEN now() - interval '1 s' END`)
	for n := range 2 {
		if n == 1 {
			enqueue(2)
		}
		r, err := dispatcher(after).Drain(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, r.Delivered)
	}
	arrive()
	for n := range 20 { // behind the late request
		require.Equal(t, []error{nil}, after.Publish(t.Context(), []publish.Outgoing{toOne("b", n)}))
	}

	var got []int
	for _, r := range c.received("one") {
		var e renamed
		require.NoError(t, json.Unmarshal(r.Value, &e))
		require.False(t, r.Attrs.IsTransactional())
		if e.Key == "a" {
			got = append(got, e.N)
		}
	}
	require.Equal(t, []int{1, 2, 1}, got)
}
