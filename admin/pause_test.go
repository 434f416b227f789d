package admin_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
)

var tenant = uuid.NullUUID{UUID: runtimetest.TenantA, Valid: true}

func TestScopeIsChecked(t *testing.T) {
	t.Parallel()
	a := runtimetest.AdminOf(t, pgtest.Database(t))
	act := admin.Act{Who: "tester"}
	for text, s := range map[string]admin.Scope{
		"scope is empty":                          {},
		"scope has more than the listener ears":   {Listener: "ears", Namespace: "jobs"},
		"scope has the topic one without its nam": {Topic: "one"},
		"scope has the zero UUID":                 {TenantID: uuid.NullUUID{Valid: true}},
	} {
		require.ErrorContains(t, a.Pause(t.Context(), s, act), "pause: "+text)
		_, err := a.Resume(t.Context(), s, act)
		require.ErrorContains(t, err, "resume: "+text)
	}
	require.ErrorContains(t, a.Pause(t.Context(), admin.Scope{TenantID: tenant}, admin.Act{}), "Who is empty")
	act.Until = time.Now().Add(-time.Second)
	require.ErrorContains(t, a.Pause(t.Context(), admin.Scope{TenantID: tenant}, act), "has passed")
	require.Zero(t, pgtest.Count(t, pgtest.Database(t), "SELECT count(*) FROM outbox.pauses"))
}

// Where a topic is known from does not matter. A name that is not known anywhere is an error that lists the known ones, and a
// log topic is one that names its listeners.
func TestPauseKnowsItsTopics(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	pause := func(namespace, topic string) error {
		return a.Pause(t.Context(), admin.Scope{Namespace: namespace, Topic: topic, TenantID: tenant}, admin.Act{Who: "tester"})
	}
	require.EqualError(t, pause("jobs", "one"), `pause tenant `+runtimetest.TenantA.String()+` of jobs/one: unknown topic "jobs/one": no queue topic runs or has events`)
	for i, insert := range []string{
		"outbox.processes (worker_id, kind, name, host, pid, topics) VALUES (gen_random_uuid(), 'dispatcher', 'n0', 'h', 1, '{\"n0/t0\": {\"version\": 1}, \"n0/t9\": {\"version\": 1}}')",
		"outbox.delivered (id, namespace, topic, attempts) SELECT gen_random_uuid(), 'n1', 't' || g, 1 FROM generate_series(0, 3) AS g",
		"outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, error) SELECT gen_random_uuid(), 'n2', 't' || g, 1, '{}', now(), 1, '' FROM generate_series(0, 3) AS g",
		"outbox.queue (id, namespace, topic) SELECT gen_random_uuid(), 'n3', 't' || g FROM generate_series(0, 3) AS g",
	} {
		namespace, topic := fmt.Sprint("n", i), fmt.Sprint("t", i)
		require.ErrorAs(t, pause(namespace, topic), new(*admin.UnknownTopicError))
		pgtest.Execute(t, pool, "INSERT INTO "+insert)
		require.NoError(t, pause(namespace, topic))
		require.NoError(t, pause(namespace, ""))
		var unknown *admin.UnknownTopicError
		require.ErrorAs(t, pause(namespace, "typo"), &unknown)
		require.Equal(t, namespace+"/typo", unknown.Name)
		require.Contains(t, unknown.Known, namespace+"/"+topic)
	}
	require.ErrorContains(t, pause("m3", ""), `unknown namespace "m3": known queue topics are n0/t0, n0/t9, n1/t0, n1/t1`)

	// A log topic: first nobody says what he reads, then a process does.
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()))
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Name: "eyes"}, listener.Config{}, runtimetest.NewNotes()))
	runtimetest.PutAll(t, pool, "a1")
	for range 2 {
		var log *admin.LogTopicError
		require.ErrorAs(t, pause("test", "said"), &log)
		require.Equal(t, []string{"ears", "eyes"}, log.Listeners)
		require.ErrorContains(t, pause("test", "said"), "test/said is a log topic, which listeners read in order: pause its listeners instead: ears, eyes")
		require.ErrorContains(t, pause("test", ""), "test is a namespace of log topics")
		pgtest.Execute(t, pool, "DELETE FROM outbox.log")
		for _, name := range []string{"ears", "eyes"} {
			pgtest.Execute(t, pool, "INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics) VALUES (gen_random_uuid(), 'listener', $1, 'h', 1, '{\"test/said\": {\"version\": 1}}')", name)
		}
	}
	pgtest.Execute(t, pool, "INSERT INTO outbox.queue (id, namespace, topic) VALUES (gen_random_uuid(), 'test', 'queued')")
	require.NoError(t, pause("test", ""), "its queue topics are paused")
}

// Pausing again replaces until, who and why. Each act that changes something leaves a row in audit.
func TestPausesAreListedAndAudited(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	runtimetest.EnqueueJobs(t, pool, runtimetest.JobTopic("one"), runtimetest.NumberedJobs(1)...)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()))
	list := func() []admin.Pause {
		t.Helper()
		all, err := a.Pauses(t.Context())
		require.NoError(t, err)
		for i := range all {
			require.WithinDuration(t, time.Now(), all[i].Since, time.Minute)
			all[i].Since = time.Time{}
		}
		return all
	}
	audits := func() int { return pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit") }
	topic, namespace := admin.Scope{Namespace: "jobs", Topic: "one"}, admin.Scope{Namespace: "jobs"}
	ears := admin.Scope{Listener: "ears"}
	until := time.Now().Add(time.Hour).Truncate(time.Microsecond)

	require.NoError(t, a.Pause(t.Context(), topic, admin.Act{DryRun: true}))
	require.Empty(t, list())
	require.NoError(t, a.Pause(t.Context(), topic, admin.Act{Who: "ann", Why: "a test", Until: until}))
	require.NoError(t, a.Pause(t.Context(), ears, admin.Act{Who: "ann"}))
	all := list()
	require.True(t, all[0].Until.Equal(until))
	all[0].Until = time.Time{}
	require.Equal(t, []admin.Pause{{Scope: topic, Who: "ann", Why: "a test"}, {Scope: ears, Who: "ann"}}, all)
	require.NoError(t, a.Pause(t.Context(), topic, admin.Act{Who: "bob"}))
	require.NoError(t, a.Pause(t.Context(), namespace, admin.Act{Who: "bob"}))
	require.Equal(t, []admin.Pause{{Scope: namespace, Who: "bob"}, {Scope: topic, Who: "bob"}, {Scope: ears, Who: "ann"}}, list())
	require.Equal(t, 4, audits())
	require.Equal(t, fmt.Sprintf(`ann pause a test {"topic": "one", "until": "%s", "namespace": "jobs"}`, until.UTC().Format("2006-01-02T15:04:05.999999Z07:00")),
		pgtest.Value[string](t, pool, "SELECT concat_ws(' ', who, act, why, scope) FROM outbox.audit ORDER BY no LIMIT 1"))

	r, err := a.Resume(t.Context(), topic, admin.Act{DryRun: true})
	require.NoError(t, err)
	require.True(t, r.Resumed)
	require.Len(t, list(), 3)
	for _, resumed := range []bool{true, false} {
		r, err := a.Resume(t.Context(), topic, admin.Act{Who: "cid", Why: "over"})
		require.NoError(t, err)
		require.Equal(t, resumed, r.Resumed)
		require.Len(t, r.Paused, 1)
		require.Equal(t, namespace, r.Paused[0].Scope)
		require.Equal(t, 5, audits(), "the second one changes nothing")
	}
	runtimetest.Resume(t, a, ears)

	// Pauses that have ended are not listed, are not resumed, and are deleted by the next act.
	pgtest.Execute(t, pool, "UPDATE outbox.pauses SET until = now() - interval '1 ms'")
	require.Empty(t, list())
	r, err = a.Resume(t.Context(), namespace, admin.Act{Who: "cid"})
	require.NoError(t, err)
	require.Equal(t, admin.ResumeReport{}, r)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.pauses"))
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (namespace, who, until) VALUES ('old', 'tester', now() - interval '1 ms')")
	require.NoError(t, a.Pause(t.Context(), topic, admin.Act{Who: "cid"}))
	require.Equal(t, []admin.Pause{{Scope: topic, Who: "cid"}}, list())
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.pauses"))
}

// The pause of a listener is honoured by a running process within a poll, ends by itself, survives restarts, and holds
// a drain too. A detached listener is not paused when it is attached again.
func TestListenerPauseIsOneRow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	ears := admin.Scope{Listener: "ears"}
	h := runtimetest.NewNotes()
	cfg := listener.Config{PollInterval: 20 * time.Millisecond}
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Shards: 4}, cfg, h))
	runtimetest.Pause(t, a, ears)
	runtimetest.PutAll(t, pool, "a1", "b1", "c1", "d1")
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{Shards: 4}, cfg, h))
	stop := runtimetest.StartListener(t, runtimetest.ListenTo(t, pool, listener.Spec{Shards: 4}, cfg, h))
	pgtest.Settles(t, pool, 1, "SELECT count(*) FROM outbox.processes")
	require.Empty(t, h.Names())
	list, err := a.Listeners(t.Context())
	require.NoError(t, err)
	for _, s := range list {
		require.Equal(t, admin.ListenerPaused, s.State)
	}
	// Nobody writes when it ends.
	until := time.Now().Add(time.Second)
	require.NoError(t, a.Pause(t.Context(), ears, admin.Act{Who: "tester", Until: until}))
	h.Await(t, 4)
	require.False(t, time.Now().Before(until))
	stop()

	runtimetest.Pause(t, a, ears)
	_, err = a.Detach(context.Background(), "ears")
	require.NoError(t, err)
	again := runtimetest.NewNotes()
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, cfg, again))
	require.Len(t, again.Names(), 4)
}
