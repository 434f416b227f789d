package queue_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// TestQueuePrivileges: the roles of `outboxgen migrate get --roles` suffice to enqueue, and to dispatch, sweep and prune.
func TestQueuePrivileges(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	roles := runtimetest.RolePools(t, pool)
	producer, worker := roles[migrate.Producer], roles[migrate.Dispatcher]
	message := func(key string) outbox.Message {
		return outbox.Message{Namespace: "jobs", Topic: "one", DedupeKey: key, Payload: []byte(`{"n": 1}`)}
	}
	for range 2 { // then they are duplicates
		runtimetest.EnqueueAll(t, producer, message("a"), message("b"))
		runtimetest.EnqueueAll(t, producer, message("")) // without keys
		pgtest.InTx(t, producer, func(tx pgx.Tx) {
			_, err := outbox.Enqueue(t.Context(), tx, "", message("c"))
			require.NoError(t, err)
			var b pgx.Batch
			_, err = outbox.EnqueueInBatch(&b, "", message("d"))
			require.NoError(t, err)
			require.NoError(t, tx.SendBatch(t.Context(), &b).Close())
		})
		pgtest.Execute(t, producer, "SELECT outbox.enqueue('jobs', 'one', '{}', dedupe_key => 'e')")
		pgtest.Execute(t, producer, "SELECT outbox.enqueue_log('jobs', 'heard', '{}', dedupe_key => 'e')")
	}
	for _, forbidden := range []string{"SELECT payload FROM outbox.events", "DELETE FROM outbox.events", "SELECT FROM outbox.queue", "DELETE FROM outbox.queue", "SELECT FROM outbox.event_status"} {
		_, err := producer.Exec(t.Context(), forbidden)
		require.ErrorContains(t, err, "permission denied", forbidden)
	}

	pgtest.Execute(t, pool, "UPDATE outbox.queue SET attempts = max_attempts WHERE id = (SELECT id FROM outbox.events WHERE dedupe_key = 'c')") // it is swept
	pgtest.Execute(t, pool, "DELETE FROM outbox.events WHERE dedupe_key = 'd'")
	pgtest.Execute(t, pool, "INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT id, namespace, topic, 1 FROM outbox.events WHERE dedupe_key = 'e'")
	topic := runtimetest.JobTopic("one")
	failed := false
	handler := runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
		if !failed {
			failed = true
			return errors.New("once")
		}
		return nil
	})
	cfg := runtimetest.QuickConfig()
	cfg.Concurrency = 1
	d := runtimetest.Dispatcher(t, worker, cfg, handler)
	total := queue.Report{}
	for total.Delivered+total.Dead < 7 {
		runtimetest.MakeDue(t, pool)
		report, err := d.Drain(t.Context())
		require.NoError(t, err)
		total.Add(report)
	}
	require.Equal(t, queue.Report{Delivered: 5, Retried: 1, Dead: 2}, total)

	spy := runtimetest.NewLogSpy()
	cfg.Logger = spy.Logger()
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, worker, cfg, handler))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.processes")
	require.NoError(t, stop())
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes"))
	require.NotContains(t, spy.String(), "permission denied")

	quick := outbox.Retention{Delivered: time.Nanosecond, Dead: time.Nanosecond}
	s, err := queue.NewStore(worker, queue.StoreConfig{Namespace: "jobs", Retention: map[string]outbox.Retention{"one": quick}})
	require.NoError(t, err)
	n, err := s.Prune(t.Context())
	require.NoError(t, err)
	require.Equal(t, 7, n)
	s, err = queue.NewStore(worker, queue.StoreConfig{Namespace: "jobs", Retention: map[string]outbox.Retention{"one": {DeleteOnAck: true}}})
	require.NoError(t, err)
	runtimetest.EnqueueAll(t, producer, message("a"), message("b"))
	claimed := runtimetest.ClaimN(t, s, 2)
	_, err = s.Extend(t.Context(), time.Minute, claimed...)
	require.NoError(t, err)
	_, err = s.Release(t.Context(), claimed[0])
	require.NoError(t, err)
	_, err = s.Ack(t.Context(), claimed[1])
	require.NoError(t, err)
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.events"), "deleted on ack")
}
