package outbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
)

// as returns a pool whose sessions have no privileges but what is granted, such as "SELECT ON outbox.log".
func as(t testing.TB, pool *pgxpool.Pool, grants ...string) *pgxpool.Pool {
	t.Helper()
	role := "outboxgen_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execute(t, pool, "CREATE ROLE "+role)
	execute(t, pool, "GRANT USAGE ON SCHEMA outbox TO "+role)
	for _, grant := range grants {
		execute(t, pool, "GRANT "+grant+" TO "+role)
	}
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		require.NoError(t, err)
	})
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["role"] = role
	limited, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(limited.Close)
	return limited
}

// The privileges that docs/operations.md names suffice.
func TestListenerPrivileges(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	producer := as(t, pool, "INSERT, SELECT (id, namespace, topic, dedupe_key) ON outbox.log", "USAGE ON SEQUENCE outbox.log_seq")
	putAll(t, producer, "a1", "b1")
	_, err := producer.Exec(t.Context(), "SELECT payload FROM outbox.log")
	require.ErrorContains(t, err, "permission denied")

	tables := "SELECT, INSERT, UPDATE, DELETE ON outbox.listeners, outbox.parked, outbox.dead_letters"
	consumer := as(t, pool, "SELECT, DELETE ON outbox.log", "SELECT ON SEQUENCE outbox.log_seq", tables)
	h := newNotes()
	h.fail = failFor("b")
	drainAll(t, listenTo(t, consumer, outbox.ListenerSpec{Retry: late, Shards: 2}, outbox.ListenerConfig{}, h))
	drainAll(t, listenTo(t, consumer, outbox.ListenerSpec{Name: "eyes", ParkKeys: true, Retry: outbox.Retry{MaxAttempts: 1}}, outbox.ListenerConfig{}, h))
	a := adminOf(t, consumer)
	_, err = a.List(t.Context())
	require.NoError(t, err)
	skip(t, a, uuid.Nil)
	require.Equal(t, 2, rewind(t, a, time.Time{}))
	pruner := as(t, pool, tables, "SELECT, DELETE ON outbox.log", "SELECT, UPDATE, DELETE ON outbox.events")
	_, err = adminOf(t, pruner).Prune(t.Context(), map[string]outbox.Retention{"test/said": {Delivered: time.Nanosecond}})
	require.NoError(t, err)
	h.fail = nil
	drainAll(t, listenTo(t, consumer, outbox.ListenerSpec{}, outbox.ListenerConfig{}, h))
	require.Equal(t, []string{"a1", "a1"}, h.names()[:2])

	restorer := as(t, pool, tables, "SELECT, UPDATE ON outbox.log", "SELECT, UPDATE ON SEQUENCE outbox.log_seq")
	execute(t, pool, "UPDATE outbox.listeners SET system_id = 1")
	r, err := adminOf(t, restorer).Rebase(t.Context())
	require.NoError(t, err)
	require.True(t, r.Needed)
}
