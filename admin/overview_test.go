package admin_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
)

func putLogged(t testing.TB, pool *pgxpool.Pool, n int, topic, ago string) {
	t.Helper()
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (namespace, topic, payload, created_at)
		SELECT 'test', $1, '{}', now() - $2::text::interval FROM generate_series(1, $3::int)`, topic, ago, n)
}

func putReader(t testing.TB, pool *pgxpool.Pool, listener, topics, seenAgo string) {
	t.Helper()
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, seen_at)
		VALUES (gen_random_uuid(), 'listener', $1, 'box', 7, $2, now() - $3::text::interval)`, listener, topics, seenAgo)
}

func TestLogTopics(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	list, err := a.LogTopics(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
	putLogged(t, pool, 3, "said", "2 h")
	putLogged(t, pool, 1, "old", "1 h")
	putLogged(t, pool, 30, "said", "1 minute")
	putReader(t, pool, "ears", `{"test/said": {"version": 1}, "test/quiet": {"version": 1}}`, "1 s")
	putReader(t, pool, "ears", `{"test/said": {"version": 2}}`, "1 s")
	putReader(t, pool, "archive", `{"test/said": {"version": 1}}`, "1 s")
	putReader(t, pool, "killed", `{"test/said": {"version": 1}, "test/gone": {"version": 1}}`, "5 minutes")
	putReader(t, pool, "by hand", `{"nothing": {"version": 1}}`, "1 s")
	putProcess(t, pool, uuid.New(), `{"test/queued": {"version": 1}}`, `{}`, "1 s")
	list, err = a.LogTopics(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, "test/old", list[0].Name())
	require.Equal(t, exactly(1), list[0].Events)
	require.Zero(t, list[0].AppendedPerSecond)
	require.WithinDuration(t, time.Now().Add(-time.Hour), list[0].Latest, 10*time.Minute)
	require.Empty(t, list[0].Listeners)
	require.Equal(t, admin.LogTopicStatus{Namespace: "test", Topic: "quiet", Listeners: []string{"ears"}}, list[1])
	require.Equal(t, "test/said", list[2].Name())
	require.Equal(t, exactly(33), list[2].Events)
	require.InDelta(t, 30.0/300, list[2].AppendedPerSecond, 0.001)
	require.WithinDuration(t, time.Now().Add(-time.Minute), list[2].Latest, 10*time.Minute)
	require.Equal(t, []string{"archive", "ears"}, list[2].Listeners)

	// Of a longer log, the latest events count, and the rate is that of their time.
	list, err = a.LogTopicsOf(t.Context(), 20)
	require.NoError(t, err)
	require.Len(t, list, 2, "the old topic is not found, and nobody reads it")
	require.Equal(t, admin.Count{More: true}, list[0].Events)
	require.Equal(t, admin.Count{N: 20, More: true}, list[1].Events)
	require.Greater(t, list[1].AppendedPerSecond, 21.0/200, "the tail is about a minute old")
	require.LessOrEqual(t, list[1].AppendedPerSecond, 21.0/60)
	list, err = a.LogTopicsOf(t.Context(), 34)
	require.NoError(t, err)
	require.Equal(t, exactly(33), list[2].Events, "exactly as many as are looked at")
}

func TestTopicsSayHowFastEventsAreEnqueued(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	putQueued(t, pool, queued{n: 30, age: "1 minute"})
	putQueued(t, pool, queued{n: 50, age: "6 minutes"})
	putQueued(t, pool, queued{n: 50, age: "1 minute", random: true}) // their ids do not tell
	putQueued(t, pool, queued{n: 60, topic: "test/heard", age: "2 minutes"})
	// Also events that are final, or that no topic has any more.
	pgtest.Execute(t, pool, `WITH gone AS (
			DELETE FROM outbox.queue WHERE id IN (SELECT id FROM outbox.queue WHERE topic = 'heard' LIMIT 15) RETURNING id)
		INSERT INTO outbox.delivered (id, namespace, topic, attempts) SELECT id, 'test', 'heard', 1 FROM gone`)
	putQueued(t, pool, queued{n: 5, topic: "test/gone", age: "1 minute"})
	pgtest.Execute(t, pool, "DELETE FROM outbox.queue WHERE topic = 'gone'")
	topics := topicsOf(t, a)
	require.Len(t, topics, 2)
	require.InDelta(t, 30.0/300, topics["test/said"].EnqueuedPerSecond, 0.001)
	require.InDelta(t, 60.0/300, topics["test/heard"].EnqueuedPerSecond, 0.001)

	// If only a part of them is read, the rate is that of its time.
	list, err := a.TopicsOfTail(t.Context(), 25)
	require.NoError(t, err)
	for _, s := range list {
		if s.Name() == "test/said" {
			require.Greater(t, s.EnqueuedPerSecond, 20.0/200)
			require.LessOrEqual(t, s.EnqueuedPerSecond, 25.0/60)
		}
	}
}

// TestOverviewIsWhatTheListsAre: the overview has what the five lists have.
func TestOverviewIsWhatTheListsAre(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	o, err := a.Overview(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), o.At, time.Minute)
	require.Equal(t, admin.Overview{At: o.At, Topics: []admin.TopicStatus{}, LogTopics: []admin.LogTopicStatus{}, Listeners: []admin.ListenerStatus{}, Processes: []admin.Process{}, Pauses: []admin.Pause{}}, o)

	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	runtimetest.PutAll(t, pool, "a1", "b1")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry}, listener.Config{}, h))
	putQueued(t, pool, queued{n: 3, topic: "jobs/mail", age: "1 minute"})
	putDead(t, pool, 2, "mail", "1 minute")
	putProcess(t, pool, uuid.New(), `{"jobs/mail": {"version": 1}}`, `{}`, "1 s")
	putProcess(t, pool, uuid.New(), `{"jobs/mail": {"version": 1}}`, `{}`, "10 minutes")
	putReader(t, pool, "ears", `{"test/said": {"version": 1}}`, "1 s")
	runtimetest.Pause(t, a, admin.Scope{Listener: "ears"})
	runtimetest.Pause(t, a, admin.Scope{Namespace: "jobs"})
	o, err = a.Overview(t.Context())
	require.NoError(t, err)
	topics, err := a.Topics(t.Context())
	require.NoError(t, err)
	logTopics, err := a.LogTopics(t.Context())
	require.NoError(t, err)
	listeners, err := a.Listeners(t.Context())
	require.NoError(t, err)
	processes, err := a.Processes(t.Context())
	require.NoError(t, err)
	pauses, err := a.Pauses(t.Context())
	require.NoError(t, err)
	require.Len(t, processes, 3)
	require.Len(t, pauses, 2)
	require.Len(t, listeners, 1)
	require.Equal(t, runtimetest.IDOf(t, pool, "b1"), listeners[0].Head.UUID)
	require.Len(t, logTopics, 1)
	require.Len(t, topics, 2)
	for i := range topics { // ages and lags go on
		require.GreaterOrEqual(t, topics[i].Oldest, o.Topics[i].Oldest)
		topics[i].Oldest, o.Topics[i].Oldest = 0, 0
	}
	for i := range listeners {
		require.GreaterOrEqual(t, listeners[i].Lag, o.Listeners[i].Lag)
		listeners[i].Lag, o.Listeners[i].Lag = 0, 0
	}
	require.Equal(t, admin.Overview{At: o.At, Topics: topics, LogTopics: logTopics, Listeners: listeners, Processes: processes, Pauses: pauses}, o)
}
