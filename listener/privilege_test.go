package listener_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/migrate"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestListenerPrivileges: the roles of `outboxgen migrate get --roles` suffice to enqueue, to listen, and for an operator.
func TestListenerPrivileges(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	pool := pgtest.Database(t)
	roles := runtimetest.RolePools(t, pool)
	producer, consumer, operator := roles[migrate.Producer], roles[migrate.Dispatcher], roles[migrate.Operator]
	runtimetest.PutAll(t, producer, "a1", "b1")
	for pool, refused := range map[*pgxpool.Pool][]string{
		producer:              {"SELECT payload FROM outbox.log", "DELETE FROM outbox.log", "SELECT FROM outbox.listeners", "UPDATE outbox.log SET topic = 'x'"},
		consumer:              {"UPDATE outbox.log SET topic = 'x'", "INSERT INTO outbox.log (namespace, topic, payload) VALUES ('a', 'b', '{}')", "UPDATE outbox.dead_letters SET error = ''", "DELETE FROM outbox.pauses", "SELECT FROM outbox.audit"},
		operator:              {"DELETE FROM outbox.audit", "UPDATE outbox.audit SET who = ''", "INSERT INTO outbox.log (namespace, topic, payload) VALUES ('a', 'b', '{}')"},
		roles[migrate.Reader]: {"DELETE FROM outbox.log", "UPDATE outbox.listeners SET last_error = ''", "SELECT nextval('outbox.log_seq')"},
	} {
		for _, sql := range refused {
			_, err := pool.Exec(t.Context(), sql)
			require.ErrorContains(t, err, "permission denied", sql)
		}
	}

	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, consumer, listener.Spec{Retry: runtimetest.LateRetry, Shards: 2}, listener.Config{}, h))
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, consumer, listener.Spec{Name: "eyes", ParkKeys: true, Retry: outbox.Retry{MaxAttempts: 1}}, listener.Config{}, h))
	g := newGathering(consumer, nil)
	g.silent = true
	full, err := listener.New(consumer, listener.Spec{
		Name: "full", Batch: outbox.Batch{Size: 9, Wait: time.Millisecond}, Rate: outbox.Rate{Events: 9, Period: time.Hour},
	}, listener.Config{Logger: runtimetest.DiscardLogger()}, listener.HandleBatch(runtimetest.SaidTopic, g, g.handle))
	require.NoError(t, err)
	stopFull := runtimetest.StartListener(t, full)
	require.Equal(t, 2, pgtest.Receive(t, g.told, "a batch"))
	stopFull()
	pgtest.Execute(t, pool, "DELETE FROM outbox.listeners WHERE listener = 'full'")
	_, err = runtimetest.AdminOf(t, roles[migrate.Reader]).Listeners(t.Context())
	require.NoError(t, err)
	a := runtimetest.AdminOf(t, operator)
	runtimetest.Skip(t, a, uuid.Nil)
	require.Equal(t, 2, runtimetest.Rewind(t, a, time.Time{}))
	_, err = a.Prune(t.Context(), map[string]outbox.Retention{"test/said": {Delivered: time.Nanosecond}})
	require.NoError(t, err)
	h.Fail = nil
	spy := runtimetest.NewLogSpy()
	stop := runtimetest.StartListener(t, runtimetest.ListenTo(t, consumer, listener.Spec{Name: "tongue"}, listener.Config{Logger: spy.Logger()}, runtimetest.NewNotes()))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.processes")
	stop()
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.processes"))
	require.NotContains(t, spy.String(), "permission denied")
	ears := admin.Scope{Listener: "ears"}
	runtimetest.Pause(t, a, ears)
	runtimetest.Resume(t, a, ears)
	require.ErrorAs(t, a.Pause(t.Context(), admin.Scope{Namespace: "jobs"}, admin.Act{Who: "tester"}), new(*admin.UnknownTopicError))
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, consumer, listener.Spec{}, listener.Config{}, h))
	require.Equal(t, []string{"a1", "a1"}, h.Names()[:2])

	pgtest.Execute(t, pool, "UPDATE outbox.listeners SET system_id = 1")
	r, err := a.Rebase(t.Context())
	require.NoError(t, err)
	require.True(t, r.Needed)

	for _, again := range []bool{false, true} {
		pgtest.InTx(t, producer, func(tx pgx.Tx) {
			many := []outbox.Message{{Namespace: "test", Topic: "keyed", DedupeKey: "a", Payload: []byte("{}"), Log: true}, {Namespace: "test", Topic: "keyed", Payload: []byte("{}"), Log: true}}
			got, err := outbox.EnqueueMany(t.Context(), tx, "", many)
			require.NoError(t, err)
			require.Equal(t, again, got[0].Duplicate)
			_, err = outbox.Enqueue(t.Context(), tx, "", many[0])
			require.NoError(t, err)
		})
	}
}
