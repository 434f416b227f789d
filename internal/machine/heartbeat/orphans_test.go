package heartbeat_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/machine/heartbeat"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestOrphans: events that are due since long and that no running process takes are logged once when they are found, and
// once when they are not any more. What is due since a moment, in flight or taken by a process is not.
func TestOrphans(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	db, err := schemadb.Open("")
	require.NoError(t, err)
	log := new(lines)
	o := heartbeat.NewOrphans(db, pool, slog.New(slog.NewTextHandler(log, nil)), []string{"jobs"}, time.Minute)
	put := func(namespace, topic string, version int, ago string) uuid.UUID {
		id := uuid.New()
		pgtest.Execute(t, pool, "INSERT INTO outbox.events (id, namespace, topic, version, payload) VALUES ($1, $2, $3, $4, '{}')", id, namespace, topic, version)
		pgtest.Execute(t, pool, "INSERT INTO outbox.queue (id, namespace, topic, version, max_attempts, next_attempt_at) VALUES ($1, $2, $3, $4, 5, now() - $5::interval)",
			id, namespace, topic, version, ago)
		return id
	}
	run := func(kind, topics, ago string) {
		pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, seen_at)
			VALUES (gen_random_uuid(), $1, 'jobs', 'box', 1, $2, now() - $3::interval)`, kind, topics, ago)
	}
	put("jobs", "taken", 1, "1 h")
	put("jobs", "taken", 2, "1 h")
	put("jobs", "raised", 3, "1 h")
	put("jobs", "gone", 1, "1 h")
	put("jobs", "gone", 2, "1 h")
	put("jobs", "recent", 1, "1 s")
	put("other", "gone", 1, "1 h")
	busy := put("jobs", "busy", 1, "1 h")
	pgtest.Execute(t, pool, "UPDATE outbox.queue SET locked_until = now() + interval '1 h', locked_by = gen_random_uuid() WHERE id = $1", busy)
	run("dispatcher", `{"jobs/taken": {"version": 1}, "jobs/raised": {"version": 2}}`, "1 s")
	run("dispatcher", `{"jobs/taken": {"version": 2}}`, "1 s")
	run("dispatcher", `{"jobs/gone": {"version": 2}}`, "1 h")
	run("dispatcher", `"written by hand"`, "1 s")
	run("listener", `{"jobs/gone": {"version": 2}}`, "1 s")
	for range 3 {
		require.NoError(t, o.Check(t.Context()))
	}
	require.Equal(t, 2, log.count("level=WARN"))
	require.Equal(t, 1, log.count("no running process takes a topic that has due events: deploy a handler, or list its name in renamed_from\" namespace=jobs topic=gone\n"))
	require.Equal(t, 1, log.count("no running process knows a payload version that due events have: deploy one that does\" namespace=jobs topic=raised version=3\n"))
	require.Zero(t, log.count("level=INFO"))

	run("dispatcher", `{"jobs/gone": {"version": 2}}`, "1 s")
	pgtest.Execute(t, pool, "DELETE FROM outbox.queue WHERE topic = 'raised'")
	for range 3 {
		require.NoError(t, o.Check(t.Context()))
	}
	require.Equal(t, 2, log.count("level=WARN"))
	require.Equal(t, 1, log.count("topic is taken again, or has no due events\" namespace=jobs topic=gone"))
	require.Equal(t, 1, log.count("payload version is known again, or has no due events\" namespace=jobs topic=raised version=3"))
}
