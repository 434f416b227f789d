package listener_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// The privileges that docs/operations.md names suffice.
func TestListenerPrivileges(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	producer := runtimetest.As(t, pool, "INSERT, SELECT (id, namespace, topic, dedupe_key) ON outbox.log", "USAGE ON SEQUENCE outbox.log_seq")
	runtimetest.PutAll(t, producer, "a1", "b1")
	_, err := producer.Exec(t.Context(), "SELECT payload FROM outbox.log")
	require.ErrorContains(t, err, "permission denied")

	tables := "SELECT, INSERT, UPDATE, DELETE ON outbox.listeners, outbox.parked, outbox.dead_letters"
	consumer := runtimetest.As(t, pool, "SELECT, DELETE ON outbox.log", "SELECT ON SEQUENCE outbox.log_seq", tables)
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, consumer, listener.Spec{Retry: runtimetest.LateRetry, Shards: 2}, listener.Config{}, h))
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, consumer, listener.Spec{Name: "eyes", ParkKeys: true, Retry: outbox.Retry{MaxAttempts: 1}}, listener.Config{}, h))
	a := runtimetest.AdminOf(t, consumer)
	_, err = a.Listeners(t.Context())
	require.NoError(t, err)
	runtimetest.Skip(t, a, uuid.Nil)
	require.Equal(t, 2, runtimetest.Rewind(t, a, time.Time{}))
	pruner := runtimetest.As(t, pool, tables, "SELECT, DELETE ON outbox.log", "SELECT, UPDATE, DELETE ON outbox.events, outbox.delivered")
	_, err = runtimetest.AdminOf(t, pruner).Prune(t.Context(), map[string]outbox.Retention{"test/said": {Delivered: time.Nanosecond}})
	require.NoError(t, err)
	h.Fail = nil
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, consumer, listener.Spec{}, listener.Config{}, h))
	require.Equal(t, []string{"a1", "a1"}, h.Names()[:2])

	restorer := runtimetest.As(t, pool, tables, "SELECT, UPDATE ON outbox.log", "SELECT, UPDATE ON SEQUENCE outbox.log_seq")
	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET system_id = 1")
	r, err := runtimetest.AdminOf(t, restorer).Rebase(t.Context())
	require.NoError(t, err)
	require.True(t, r.Needed)
}
