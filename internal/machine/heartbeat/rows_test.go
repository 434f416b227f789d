package heartbeat_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// putProcess writes the row of a process that was seen some time ago.
func putProcess(t *testing.T, pool *pgxpool.Pool, worker uuid.UUID, kind, name, ago string) {
	t.Helper()
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, started_at, seen_at)
		VALUES ($1, $2, $3, 'old', 1, '{}', now() - interval '1 day', now() - $4::interval)`, worker, kind, name, ago)
}

// TestHeartDeletesNoRowOfAnother: the old row of a worker is deleted, and neither a row that it has under another kind or name, nor a
// younger one of which it has an old one under another kind or name. Nor is its own, after a pause of the process of
// more than an hour.
func TestHeartDeletesNoRowOfAnother(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	rows := func(worker uuid.UUID) string {
		return pgtest.Value[string](t, pool, `SELECT coalesce(string_agg(kind || ' ' || name, ', ' ORDER BY kind, name), '')
			FROM outbox.processes WHERE worker_id = $1`, worker)
	}
	old, young := uuid.New(), uuid.New()
	for _, other := range [][2]string{{"listener", "jobs"}, {"dispatcher", "mail"}} {
		putProcess(t, pool, old, other[0], other[1], "61 min")
		putProcess(t, pool, young, other[0], other[1], "61 min")
	}
	putProcess(t, pool, old, "dispatcher", "jobs", "61 min")
	putProcess(t, pool, young, "dispatcher", "jobs", "59 min")
	h := newHeart(t, pool, new(lines))
	putProcess(t, pool, h.WorkerID, "dispatcher", "jobs", "61 min")
	start(t, h)
	beats(t, h)
	require.Equal(t, "dispatcher mail, listener jobs", rows(old))
	require.Equal(t, "dispatcher jobs, dispatcher mail, listener jobs", rows(young))
	require.Equal(t, "dispatcher jobs", rows(h.WorkerID))
}

// TestHeartDeletesWhatIsGoneForAMonth: of any kind and name, because nobody may run there again.
func TestHeartDeletesWhatIsGoneForAMonth(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	for _, other := range [][2]string{{"listener", "jobs"}, {"dispatcher", "mail"}, {"listener", "ears"}} {
		putProcess(t, pool, uuid.New(), other[0], other[1], "721 h")
		putProcess(t, pool, uuid.New(), other[0], other[1], "719 h")
	}
	h := newHeart(t, pool, new(lines))
	putProcess(t, pool, h.WorkerID, "listener", "old", "721 h")
	start(t, h)
	beats(t, h)
	require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes WHERE host = 'old'"))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes WHERE seen_at < now() - interval '720 h'"))
}

// TestHeartWaitsForNoOldRow: another process that deletes the same old rows is not waited for.
func TestHeartWaitsForNoOldRow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	worker := uuid.New()
	putProcess(t, pool, worker, "dispatcher", "jobs", "61 min")
	other := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := other.Exec(t.Context(), "DELETE FROM outbox.processes WHERE worker_id = $1", worker)
	require.NoError(t, err)
	h := newHeart(t, pool, new(lines))
	start(t, h)
	beats(t, h)
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.processes WHERE host <> 'old'")
	require.NoError(t, other.Rollback(t.Context()))
	pgtest.Settles(t, pool, 0, "SELECT count(*) FROM outbox.processes WHERE host = 'old'")
}

// TestOrphansInEachLane: each lane of each namespace is read, the oldest 200 of its due rows, and those of no other namespace.
func TestOrphansInEachLane(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	db, err := schemadb.Open("")
	require.NoError(t, err)
	put := func(namespace, topic string, lane, rows int, ago string) {
		pgtest.Execute(t, pool, `INSERT INTO outbox.queue (id, namespace, topic, lane, next_attempt_at)
			SELECT gen_random_uuid(), $1, $2, $3, now() - $5::interval FROM generate_series(1, $4)`, namespace, topic, lane, rows, ago)
	}
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics) VALUES
		(gen_random_uuid(), 'dispatcher', 'jobs', 'box', 1, '{"jobs/taken": {"version": 1}, "other/taken": {"version": 1}, "jobs/elsewhere": {}}')`)
	put("jobs", "taken", 3, 199, "3 h") // these are read
	put("jobs", "oldest", 3, 1, "2 h")
	put("jobs", "behind", 3, 1, "1 h")
	put("jobs", "taken", 5, 1, "1 h")
	put("jobs", "second", 5, 1, "1 h")
	put("jobs", "fresh", 7, 1, "30 s")
	put("jobs", "last", 9, 1, "2 min")
	put("jobs", "elsewhere", 9, 1, "1 h")
	put("other", "first", 4, 1, "1 h")
	put("other", "elsewhere", 8, 1, "1 h")
	put("third", "unasked", 5, 1, "1 h")
	put("alone", "unasked", 6, 1, "1 h")
	log := new(lines)
	o := heartbeat.NewOrphans(db, pool, slog.New(slog.NewTextHandler(log, nil)), []string{"other", "jobs"}, time.Minute)
	require.NoError(t, o.Check(t.Context()))
	for _, found := range []string{"jobs/oldest", "jobs/second", "jobs/last", "other/first", "other/elsewhere"} {
		namespace, topic, _ := strings.Cut(found, "/")
		require.Equal(t, 1, log.count(fmt.Sprintf("namespace=%s topic=%s\n", namespace, topic)), found)
	}
	require.Equal(t, 1, log.count("namespace=jobs topic=elsewhere version=1\n"), "its process declares no version")
	require.Equal(t, 6, log.count("level=WARN"))
}

// TestOrphansInSeveralVersionsAreSaidOnce: a topic that nobody takes is one line per namespace, whatever versions its events have.
func TestOrphansInSeveralVersionsAreSaidOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	db, err := schemadb.Open("")
	require.NoError(t, err)
	pgtest.Execute(t, pool, `INSERT INTO outbox.queue (id, namespace, topic, version, next_attempt_at)
		SELECT gen_random_uuid(), n, topic, v, now() - interval '1 h'
		FROM unnest('{jobs,other}'::text[]) AS n, unnest('{gone,lost}'::text[]) AS topic, generate_series(1, 3) AS v`)
	log := new(lines)
	o := heartbeat.NewOrphans(db, pool, slog.New(slog.NewTextHandler(log, nil)), []string{"other", "jobs"}, time.Minute)
	require.NoError(t, o.Check(t.Context()))
	for _, found := range []string{"namespace=jobs topic=gone", "namespace=jobs topic=lost", "namespace=other topic=gone", "namespace=other topic=lost"} {
		require.Equal(t, 1, log.count(found+"\n"), found)
	}
	require.Equal(t, 4, log.count("level=WARN"))
}
