package admin_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestDrained: each event that some code may yet decode counts once, if its version is not newer.
func TestDrained(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	drained := func(topic string, version int) admin.Drained {
		d, err := a.Drained(t.Context(), topic, version)
		require.NoError(t, err)
		require.Equal(t, topic, d.Namespace+"/"+d.Topic)
		require.Equal(t, version, d.Version)
		return d
	}
	require.True(t, drained("test/said", 0).Is())
	for version := range 3 {
		for _, q := range []queued{
			{}, {due: "now() + interval '1 h'"}, {attempts: 1, claimNo: 1, due: "now() + interval '1 h'"},
			{attempts: 1, claimNo: 1, lockedUntil: "now() + interval '1 h'"},
		} {
			q.n, q.version = version+1, version+1
			putQueued(t, pool, q)
		}
	}
	putQueued(t, pool, queued{n: 5, topic: "test/other"})
	putDead(t, pool, 4, "said", "1 h")
	putDelivered(t, pool, 3, "said", "1 h")
	pgtest.Execute(t, pool, `INSERT INTO outbox.inbox_quarantined (consumer_group, event_id, source, tenant_id, entity_type, entity_id, version, last_version, last_event_id)
		SELECT 'g', id, '', id, 'user', '1', 1, 2, id FROM outbox.queue WHERE topic = 'said' AND version = 2 LIMIT 1`)
	want := admin.Drained{Namespace: "test", Topic: "said", Version: 1, Due: 1, Scheduled: 1, Retrying: 1, InFlight: 1, Dead: 4, Unread: map[string]int64{}}
	require.Equal(t, want, drained("test/said", 1))
	require.False(t, want.Is())
	want.Version, want.Due, want.Scheduled, want.Retrying, want.InFlight, want.Quarantined = 2, 3, 3, 3, 3, 1
	require.Equal(t, want, drained("test/said", 2))
	want.Version, want.Due, want.Scheduled, want.Retrying, want.InFlight = 0, 6, 6, 6, 6
	require.Equal(t, want, drained("test/said", 0))
	pgtest.Execute(t, pool, "DELETE FROM outbox.queue WHERE version = 1 AND topic = 'said'")
	pgtest.Execute(t, pool, "DELETE FROM outbox.dead_letters")
	require.True(t, drained("test/said", 1).Is(), "delivered events need nothing")
	for _, topic := range []string{"", "said", "test/", "test/Said", "test/said/more"} {
		_, err := a.Drained(t.Context(), topic, 1)
		require.ErrorContains(t, err, "is not a valid topic: use namespace/name")
	}
	_, err := a.Drained(t.Context(), "test/said", -1)
	require.ErrorContains(t, err, "version -1 is not between")
}

// TestDrainedLog: an event of a log topic counts for each listener that has not passed it, stragglers too, and when it is
// parked or dead.
func TestDrainedLog(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	drained := func() admin.Drained {
		d, err := a.Drained(t.Context(), "test/said", 1)
		require.NoError(t, err)
		return d
	}
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	ears := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true, Shards: 2, Retry: outbox.Retry{MaxAttempts: 2, BaseDelay: time.Hour, MaxDelay: time.Hour}}, listener.Config{}, h)
	eyes := runtimetest.ListenTo(t, pool, listener.Spec{Name: "eyes"}, listener.Config{}, runtimetest.NewNotes())
	runtimetest.PutAll(t, pool, "a1", "a2")
	require.Equal(t, admin.Drained{Namespace: "test", Topic: "said", Version: 1, Unread: map[string]int64{}, Kept: 2}, drained(), "nobody listens")
	runtimetest.DrainAll(t, ears)
	runtimetest.DrainAll(t, eyes)
	require.True(t, drained().Is())

	late := pgtest.Begin(t, pool, pgx.TxOptions{})
	_, err := runtimetest.SaidTopic.Enqueue(t.Context(), late, runtimetest.Said{Key: "a", N: 3})
	require.NoError(t, err)
	runtimetest.PutAll(t, pool, "b1", "b2", "c1")
	require.Equal(t, map[string]int64{"ears": 3, "eyes": 3}, drained().Unread)
	runtimetest.DrainAll(t, ears)
	runtimetest.DrainAll(t, eyes)
	d := drained()
	require.Empty(t, d.Unread)
	require.EqualValues(t, 2, d.Parked)
	require.NoError(t, late.Commit(t.Context()))
	require.Equal(t, map[string]int64{"ears": 1, "eyes": 1}, drained().Unread, "a straggler")
	runtimetest.DrainAll(t, ears)
	require.Equal(t, map[string]int64{"eyes": 1}, drained().Unread)
	runtimetest.RetryNow(t, pool)
	runtimetest.DrainAll(t, ears)
	runtimetest.DrainAll(t, eyes)
	d = drained()
	require.EqualValues(t, 1, d.Dead)
	require.EqualValues(t, 6, d.Kept)
	h.Fail = nil
	runtimetest.RetryNow(t, pool)
	runtimetest.DrainAll(t, ears)
	pgtest.Execute(t, pool, "DELETE FROM outbox.dead_letters")
	require.True(t, drained().Is())
}

// TestListenersReportUnhandledVersions: the versions before which a shard has stopped, and those of parked events, if
// processes read the topic and none of them knows the version.
func TestListenersReportUnhandledVersions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	raised := runtimetest.Altered(runtimetest.SaidTopic, func(s *outbox.TopicSpec) { s.Version = 2 })
	h := runtimetest.NewNotes()
	h.Fail = func(outbox.Delivery[runtimetest.Said]) error { return errors.New("not yet") }
	newBuild, err := listener.New(pool, runtimetest.WithLateRetries(listener.Spec{Name: "ears", ParkKeys: true}), listener.Config{Logger: runtimetest.DiscardLogger()}, listener.Handle(raised, h, h.Handle))
	require.NoError(t, err)
	oldBuild := runtimetest.ListenTo(t, pool, listener.Spec{ParkKeys: true}, listener.Config{}, h)
	put := func(key string) {
		pgtest.InTx(t, pool, func(tx pgx.Tx) {
			_, err := raised.Enqueue(t.Context(), tx, runtimetest.Said{Key: key})
			require.NoError(t, err)
		})
	}
	want := []admin.TopicVersion{{Topic: "test/said", Version: 2}}
	process := func(version string) {
		pgtest.Execute(t, pool, "DELETE FROM outbox.processes")
		pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics)
			VALUES (gen_random_uuid(), 'listener', 'ears', 'box', 1, '{"test/said": {"version": `+version+`}}')`)
	}
	process("1")
	put("a")
	runtimetest.DrainAll(t, newBuild)
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.parked"))
	require.Equal(t, want, statusOf(t, a).UnhandledVersions, "parked")
	pgtest.Execute(t, pool, "DELETE FROM outbox.parked")
	require.Empty(t, statusOf(t, a).UnhandledVersions)
	put("b")
	runtimetest.DrainAll(t, oldBuild)
	require.Equal(t, want, statusOf(t, a).UnhandledVersions, "at the head")
	process("2")
	require.Empty(t, statusOf(t, a).UnhandledVersions)
	pgtest.Execute(t, pool, "DELETE FROM outbox.processes")
	require.Empty(t, statusOf(t, a).UnhandledVersions, "no process runs it")
}
