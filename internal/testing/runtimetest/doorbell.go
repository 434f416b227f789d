package runtimetest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/queue"
)

// Rarely is a poll interval that is longer than any test.
const Rarely = 10 * pgtest.Patience

// Promptly is how soon an event must be handled without a poll, on a busy machine.
const Promptly = pgtest.Patience

// SleeperConfig is a configuration in which only the doorbell wakes the dispatcher.
func SleeperConfig() queue.Config {
	return queue.Config{LeaseDuration: 3 * Rarely, PollInterval: Rarely, Logger: DiscardLogger()}
}

// Holder returns the process id of the session that holds the doorbell; 0 if none does.
func Holder(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return pgtest.Count(t, pool,
		`SELECT coalesce(max(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

// TakenOver waits until a session other than before holds the doorbell.
func TakenOver(t testing.TB, pool *pgxpool.Pool, before int) {
	t.Helper()
	pgtest.Eventually(t, func() bool { now := Holder(t, pool); return now != 0 && now != before })
}

// BellOf returns the lock and the channel of the doorbell of a namespace in the schema outbox.
func BellOf(namespace string) (key int64, channel string) {
	db, err := schemadb.Open("")
	if err != nil {
		panic(err)
	}
	b := bell.Of(db, namespace)
	return b.Key, b.Channel
}
