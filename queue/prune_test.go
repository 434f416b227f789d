package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

func TestSweepMakesLastAttemptsDeadLetters(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	worker := uuid.New()
	s := runtimetest.StoreOf(t, pool, worker)
	runtimetest.EnqueueN(t, pool, 6)
	claimed := runtimetest.ClaimN(t, s, 5)
	last, held, tried, lowered := claimed[0].ID, claimed[1].ID, claimed[2].ID, claimed[3].ID
	pgtest.Execute(t, pool, "UPDATE testing.events SET attempts = 5, max_attempts = 5 WHERE id = ANY ($1)", []uuid.UUID{last, held})
	pgtest.Execute(t, pool, "UPDATE testing.events SET last_error = repeat('€', 2000 / 3) WHERE id = $1", last)
	_, err := s.Nack(t.Context(), failures(runtimetest.ErrHandler, claimed[3])...)
	require.NoError(t, err)
	pgtest.Execute(t, pool, "UPDATE testing.events SET attempts = 3, max_attempts = 2, next_attempt_at = statement_timestamp() WHERE id = $1", lowered)
	other := runtimetest.Message(runtimetest.TenantA, 1)
	other.Namespace = "elsewhere"
	runtimetest.EnqueueAll(t, pool, other)
	pgtest.Execute(t, pool, "UPDATE testing.events SET attempts = 5, max_attempts = 5 WHERE namespace = 'elsewhere'")
	runtimetest.ExpireLeases(t, pool, last, tried)

	n, err := s.SweepDead(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	r := runtimetest.RowOf(t, pool, last)
	require.Equal(t, "dead", r.Status)
	require.True(t, r.Final)
	require.False(t, r.Locked)
	require.Contains(t, *r.LastError, "lease ran out on attempt 5, worker "+worker.String())
	require.Contains(t, *r.LastError, "before: €")
	require.LessOrEqual(t, len(*r.LastError), 2048)
	require.Equal(t, "dead", runtimetest.RowOf(t, pool, lowered).Status)
	require.Equal(t, runtimetest.ErrHandler.Error(), *runtimetest.RowOf(t, pool, lowered).LastError)
	require.Equal(t, "processing", runtimetest.RowOf(t, pool, held).Status, "its lease has not run out")
	require.Equal(t, "processing", runtimetest.RowOf(t, pool, tried).Status, "it has attempts left")
	require.Equal(t, 1, runtimetest.CountWhere(t, pool, "namespace = 'elsewhere' AND status = 'pending'"))
	n, err = s.SweepDead(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestSweepTakesMoreThanOneChunk(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.EnqueueN(t, pool, 1203)
	pgtest.Execute(t, pool, "UPDATE testing.events SET attempts = 5, max_attempts = 5")
	n, err := runtimetest.NewStore(t, pool).SweepDead(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1203, n)
	require.Equal(t, 1203, runtimetest.CountWhere(t, pool, "status = 'dead' AND last_error LIKE '%lowered%'"))
}

// TestPruneKeepsToItsTopics: a store deletes by the retention that it was given, and nothing of a topic whose retention it
// does not know: that may be kept for a year.
func TestPruneKeepsToItsTopics(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	_, err := runtimetest.NewStore(t, pool).Prune(t.Context())
	require.ErrorContains(t, err, "StoreConfig.Retention")
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: runtimetest.Namespace, Retention: map[string]outbox.Retention{
		"usual": {}, "other": {}, "short": {Delivered: time.Hour, Dead: 2 * time.Hour},
	}})
	require.NoError(t, err)
	final := func(topic, status, age string, n int) {
		pgtest.Execute(t, pool, `INSERT INTO testing.events (namespace, topic, payload, status, finalized_at)
			SELECT 'test', $4, '1', $1, statement_timestamp() - $2::interval FROM generate_series(1, $3) AS i`, status, age, n, topic)
	}
	for _, topic := range []string{"usual", "other", "unknown"} {
		final(topic, "delivered", "167 h", 1)
		final(topic, "delivered", "169 h", 1100)
		final(topic, "dead", "169 h", 1)
		final(topic, "dead", "719 h", 1)
		final(topic, "dead", "721 h", 1)
	}
	final("short", "delivered", "30 min", 1)
	final("short", "delivered", "61 min", 1)
	final("short", "dead", "61 min", 1)
	final("short", "dead", "121 min", 1)
	runtimetest.EnqueueN(t, pool, 2)
	pgtest.Execute(t, pool, "UPDATE testing.events SET created_at = '2000-01-01', next_attempt_at = '2000-01-01' WHERE status = 'pending'")
	runtimetest.ClaimN(t, s, 1)
	pgtest.Execute(t, pool, `INSERT INTO testing.events (namespace, topic, payload, status, finalized_at) VALUES ('elsewhere', 'usual', '1', 'dead', '2000-01-01')`)
	unknown := runtimetest.CountWhere(t, pool, "topic = 'unknown'")
	n, err := s.Prune(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2*1101+2, n)
	require.Equal(t, unknown, runtimetest.CountWhere(t, pool, "topic = 'unknown'"), "kept for as long as whoever knows it says")
	require.Equal(t, 2, runtimetest.CountWhere(t, pool, "topic = 'short'"))
	require.Equal(t, 2*3, runtimetest.CountWhere(t, pool, "topic IN ('usual', 'other') AND namespace = 'test'"))
	require.Equal(t, 2, runtimetest.CountWhere(t, pool, "finalized_at IS NULL"), "what is not final is never pruned, however old")
	require.Equal(t, 1, runtimetest.CountWhere(t, pool, "namespace = 'elsewhere'"))
	n, err = s.Prune(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
}

// TestStoreDeletesOnAckWhereItsRetentionSaysSo: as a dispatcher does.
func TestStoreDeletesOnAckWhereItsRetentionSaysSo(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: runtimetest.Namespace, Retention: map[string]outbox.Retention{"ping": {DeleteOnAck: true}}})
	require.NoError(t, err)
	runtimetest.EnqueueN(t, pool, 1)
	_, err = s.Ack(t.Context(), runtimetest.ClaimN(t, s, 1)...)
	require.NoError(t, err)
	require.Zero(t, runtimetest.CountWhere(t, pool, "true"))
}

func TestStoreRefusesRetention(t *testing.T) {
	t.Parallel()
	for want, keep := range map[string]map[string]outbox.Retention{
		`"test/ping" is not a valid topic name`: {"test/ping": {}},
		"topic ping has a negative duration":    {"ping": {Delivered: -1, Dead: time.Hour}},
		"topic pong has a negative duration":    {"pong": {Dead: -1}},
	} {
		_, err := queue.NewStore(runtimetest.Unconnected(t), queue.StoreConfig{Namespace: runtimetest.Namespace, Retention: keep})
		require.ErrorContains(t, err, "new store: field Retention: "+want)
	}
}

func TestPruneAndSweepDoNotWaitForLocks(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s, err := queue.NewStore(pool, queue.StoreConfig{Namespace: runtimetest.Namespace, Retention: map[string]outbox.Retention{"ping": {}}})
	require.NoError(t, err)
	pgtest.Execute(t, pool, `INSERT INTO testing.events (namespace, topic, payload, status, finalized_at) SELECT 'test', 'ping', '1', 'delivered', '2000-01-01' FROM generate_series(1, 5)`)
	pgtest.Execute(t, pool, `INSERT INTO testing.events (namespace, topic, payload, attempts, max_attempts) SELECT 'test', 'ping', '1', 5, 5 FROM generate_series(1, 3)`)
	tx := pgtest.Begin(t, pool, pgx.TxOptions{})
	for _, table := range []string{"delivered", "queue"} {
		_, err := tx.Exec(t.Context(), "SELECT FROM outbox."+table+" LIMIT 1 FOR UPDATE")
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
	defer cancel()
	n, err := s.Prune(ctx)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	n, err = s.SweepDead(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, n)
}
