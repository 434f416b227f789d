package outbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/dbschema"
	"github.com/outboxgen/outboxgen/internal/doorbell"
	"github.com/outboxgen/outboxgen/outbox"
)

// rarely is a poll interval that a test does not live to see.
const rarely = 10 * patience

// promptly is how soon an event must be handled that nobody may have polled for, on a machine that is busy.
const promptly = patience

// sleeper is a configuration that wakes up by the bell or not at all.
func sleeper() outbox.DispatcherConfig {
	return outbox.DispatcherConfig{LeaseDuration: 3 * rarely, PollInterval: rarely, Logger: quiet()}
}

// holder returns the process that holds the doorbell, 0 if none does.
func holder(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return count(t, pool, `SELECT coalesce(max(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

// takenOver waits until a session other than before holds the doorbell.
func takenOver(t testing.TB, pool *pgxpool.Pool, before int) {
	t.Helper()
	eventually(t, func() bool { now := holder(t, pool); return now != 0 && now != before })
}

// bellOf returns the lock and the channel of the doorbell of a namespace in the schema outbox.
func bellOf(namespace string) (key int64, channel string) {
	db, err := dbschema.Open("")
	if err != nil {
		panic(err)
	}
	b := doorbell.Of(db, namespace)
	return b.Key, b.Channel
}

// logBell returns the lock and the channel of the doorbell of log topics in the schema outbox.
func logBell() (key int64, channel string) {
	db, err := dbschema.Open("")
	if err != nil {
		panic(err)
	}
	b := doorbell.OfLog(db)
	return b.Key, b.Channel
}
