package runtimetest_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/queue"
)

// said enqueues an event for listeners with the context of a handler.
func said(ctx context.Context, pool *pgxpool.Pool, key string, opts ...outbox.EnqueueOption) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := runtimetest.SaidTopic.Enqueue(ctx, tx, runtimetest.Said{Key: key}, opts...)
		return err
	})
}

// causes returns the chain of each event of the log with a key: its cause and its correlation id.
func causes(t *testing.T, pool *pgxpool.Pool) map[string][2]string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT partition_key, coalesce(headers ->> 'causation_id', ''), coalesce(headers ->> 'correlation_id', '') FROM outbox.log ORDER BY seq`)
	require.NoError(t, err)
	all := make(map[string][2]string)
	var key string
	var of [2]string
	_, err = pgx.ForEachRow(rows, []any{&key, &of[0], &of[1]}, func() error { all[key] = of; return nil })
	require.NoError(t, err)
	return all
}

// TestHandlersOfDispatchersPassTheirEventOn: what a handler and its middleware enqueue has the event for its cause, and a
// handler of batches says which.
func TestHandlersOfDispatchersPassTheirEventOn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	one, many := runtimetest.JobTopic("one"), runtimetest.Altered(runtimetest.JobTopic("many"), func(s *outbox.TopicSpec) { s.Batch = outbox.Batch{Size: 10} })
	cfg := runtimetest.QuickConfig()
	cfg.Middleware = []outbox.Middleware{func(ctx context.Context, _ outbox.Event, next func(context.Context) error) error {
		if err := said(ctx, pool, "middleware"); err != nil {
			return err
		}
		return next(ctx)
	}}
	cfg.BatchMiddleware = []outbox.BatchMiddleware{}
	d := runtimetest.Dispatcher(t, pool, cfg,
		runtimetest.OnJob(one, func(ctx context.Context, d outbox.Delivery[runtimetest.Job]) error {
			return said(ctx, pool, "one")
		}),
		queue.HandleBatch(many, t, func(ctx context.Context, ds []outbox.Delivery[runtimetest.Job]) error {
			if err := said(ctx, pool, "nobody"); err != nil {
				return err
			}
			for _, d := range ds {
				if err := said(outbox.ContextWithCause(ctx, d.Event), pool, "context "+d.ID.String()); err != nil {
					return err
				}
				if err := said(ctx, pool, "option "+d.ID.String(), outbox.WithCause(d.Event)); err != nil {
					return err
				}
			}
			return nil
		}))
	jobs := runtimetest.NumberedJobs(2)
	root := runtimetest.EnqueueJobs(t, pool, one, jobs[0])[0].String()
	batch := runtimetest.EnqueueJobs(t, pool, many, jobs...)
	_, err := d.Drain(t.Context())
	require.NoError(t, err)
	want := map[string][2]string{"one": {root, root}, "middleware": {root, root}, "nobody": {}}
	for _, id := range batch {
		id := id.String()
		want["context "+id], want["option "+id] = [2]string{id, id}, [2]string{id, id}
	}
	require.Equal(t, want, causes(t, pool))
}

// TestAChainGoesThroughListenersAndConsumers: in both modes, and through every encoding of a message.
func TestAChainGoesThroughListenersAndConsumers(t *testing.T) {
	t.Parallel()
	for encoding, encode := range map[string]publish.Encoder{
		"binary": publish.CloudEvents("", publish.Binary), "structured": publish.CloudEvents("", publish.Structured), "json": publish.JSON(),
	} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			runtimetest.BothModes(t, func(t *testing.T, transactional bool) {
				pool := pgtest.Database(t)
				var sent []publish.Outgoing
				react := func(ctx context.Context, d outbox.Delivery[runtimetest.Said]) error {
					switch d.Payload.Key {
					case "first":
						return said(ctx, pool, "second")
					case "second":
						return said(ctx, pool, "third")
					case "third":
						sent = append(sent, publish.Outgoing{Event: d.Event, Payload: []byte(`{"key": "third", "n": 0}`)})
					}
					return nil
				}
				handler := listener.Handle(runtimetest.SaidTopic, t, react)
				if transactional {
					handler = listener.HandleTx(runtimetest.SaidTopic, t, func(ctx context.Context, _ pgx.Tx, d outbox.Delivery[runtimetest.Said]) error {
						return react(ctx, d)
					})
				}
				l, err := listener.New(pool, listener.Spec{Name: "ears"}, listener.Config{Logger: runtimetest.DiscardLogger()}, handler)
				require.NoError(t, err)
				runtimetest.Put(t, pool, "first", 0)
				for range 3 { // a drain ends with what was there when it began
					runtimetest.DrainAll(t, l)
				}
				require.Len(t, sent, 1)

				// Another service consumes the third event, and enqueues the fourth.
				ib, err := inbox.New(inbox.Config{Group: "other"})
				require.NoError(t, err)
				topic := consume.NewTopic[runtimetest.Said](consume.TopicSpec{Namespace: "test", Name: "said"})
				c, err := consume.New(ib, consume.Handle(topic, t, func(_ *testing.T, ctx context.Context, tx pgx.Tx, _ consume.Delivery[runtimetest.Said]) error {
					_, err := runtimetest.SaidTopic.Enqueue(ctx, tx, runtimetest.Said{Key: "fourth"})
					return err
				}))
				require.NoError(t, err)
				m, err := encode(sent[0])
				require.NoError(t, err)
				_, err = c.Consume(t.Context(), pool, consume.Message(m))
				require.NoError(t, err)

				id := func(key string) string {
					return pgtest.Value[uuid.UUID](t, pool, "SELECT id FROM outbox.log WHERE partition_key = $1", key).String()
				}
				root := id("first")
				require.Equal(t, map[string][2]string{
					"first": {}, "second": {root, root}, "third": {id("second"), root}, "fourth": {id("third"), root},
				}, causes(t, pool))
			})
		})
	}
}
