package queue_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// enqueueTopic enqueues n events of a topic.
func enqueueTopic(t testing.TB, pool *pgxpool.Pool, topic string, n int) {
	t.Helper()
	ms := make([]outbox.Message, n)
	for i := range ms {
		ms[i] = runtimetest.Message(uuid.New(), i)
		ms[i].Topic = topic
	}
	runtimetest.EnqueueAll(t, pool, ms...)
}

// putInLane writes one due event of a topic into a lane.
func putInLane(t testing.TB, pool *pgxpool.Pool, topic string, lane int) {
	t.Helper()
	pgtest.Execute(t, pool, `WITH e AS (INSERT INTO outbox.events (namespace, topic, payload) VALUES ($1, $2, '1') RETURNING id)
		INSERT INTO outbox.queue (id, namespace, topic, lane) SELECT id, $1, $2, $3 FROM e`, runtimetest.Namespace, topic, lane)
}

// TestClaimTakesNoLongerBehindAnotherTopic: a claim of one topic, from the head, does not walk over what is due of another.
func TestClaimTakesNoLongerBehindAnotherTopic(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	const backlog, size, rounds = 100_000, 100, 25
	claim := func(s *queue.Store, pool *pgxpool.Pool) time.Duration {
		enqueueTopic(t, pool, "own", size)
		began := time.Now()
		claimed, err := s.Claim(t.Context(), queue.ClaimConfig{BatchSize: size, Topics: []string{"own"}, LeaseDuration: runtimetest.LongLease})
		took := time.Since(began)
		require.NoError(t, err)
		require.Len(t, claimed, size)
		_, err = s.Ack(t.Context(), claimed...)
		require.NoError(t, err)
		return took
	}
	empty, behind := pgtest.Database(t), pgtest.Database(t)
	pgtest.Execute(t, behind, `WITH e AS (INSERT INTO outbox.events (namespace, topic, payload) SELECT $2, 'foreign', '1' FROM generate_series(1, $1) RETURNING id)
		INSERT INTO outbox.queue (id, namespace, topic, lane, next_attempt_at) SELECT id, $2, 'foreign', outbox.lane('foreign'), now() - interval '1 h' FROM e`,
		backlog, runtimetest.Namespace)
	a, b := runtimetest.NewStore(t, empty), runtimetest.NewStore(t, behind)
	alone, loaded := make([]time.Duration, rounds), make([]time.Duration, rounds)
	for i := range rounds {
		alone[i], loaded[i] = claim(a, empty), claim(b, behind)
	}
	// The shortest ones: what else the machine does makes others longer. A walk would make all of them longer.
	t.Logf("claims of an empty table from %s, behind %d of another topic from %s", slices.Min(alone), backlog, slices.Min(loaded))
	require.Less(t, slices.Min(loaded), 2*slices.Min(alone))
}

// TestClaimWithoutTopicsFindsItsLanes: it takes from each lane that has something, whoever wrote it, and a cursor finds the
// lanes of topics that come later.
func TestClaimWithoutTopicsFindsItsLanes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	for _, topic := range []string{"a", "b", "c"} {
		enqueueTopic(t, pool, topic, 2)
	}
	putInLane(t, pool, "a", 0)
	putInLane(t, pool, "a", 5)
	putInLane(t, pool, "a", 1<<30-1)
	cfg := queue.ClaimConfig{LeaseDuration: runtimetest.LongLease, Cursor: new(queue.Cursor)}
	claims := func(want int) {
		t.Helper()
		require.False(t, cfg.Cursor.Done())
		n := 0
		for done := false; !done; done = cfg.Cursor.Done() {
			claimed, err := s.Claim(t.Context(), cfg)
			require.NoError(t, err)
			n += len(claimed)
		}
		require.Equal(t, want, n)
	}
	claims(9)
	enqueueTopic(t, pool, "d", 3)
	claimed, err := s.Claim(t.Context(), cfg)
	require.NoError(t, err)
	require.Len(t, claimed, 3)
	require.True(t, cfg.Cursor.Done())
	cfg.Cursor = new(queue.Cursor)
	claims(0)
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET attempts = max_attempts, locked_until = NULL")
	n, err := s.SweepDead(t.Context())
	require.NoError(t, err)
	require.Equal(t, 12, n)
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters WHERE lane IN (5, 1073741823)"))
	cfg.Cursor = new(queue.Cursor)
	claims(0) // there are no lanes any more
}

// TestRowsWithoutALaneAreClaimed: a claim of topics takes their events that were written by hand without a lane, and so does a
// dispatcher.
func TestRowsWithoutALaneAreClaimed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	s := runtimetest.NewStore(t, pool)
	putInLane(t, pool, "own", 0)
	claimed, err := s.Claim(t.Context(), queue.ClaimConfig{Topics: []string{"other", "own"}})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	handled := make(chan struct{}, 1)
	topic := runtimetest.JobTopic("own")
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(),
		runtimetest.OnJob(topic, func(context.Context, outbox.Delivery[runtimetest.Job]) error {
			handled <- struct{}{}
			return nil
		})))
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(1)...)
	pgtest.Receive(t, handled, "the event in the lane of the topic")
	pgtest.Execute(t, pool, `WITH e AS (INSERT INTO outbox.events (namespace, topic, payload) SELECT 'jobs', 'own', payload FROM outbox.events WHERE namespace = 'jobs' RETURNING id)
		INSERT INTO outbox.queue (id, namespace, topic) SELECT id, 'jobs', 'own' FROM e`)
	pgtest.Receive(t, handled, "the event without a lane")
	require.NoError(t, stop())
}
