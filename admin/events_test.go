package admin_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	tenantA = "00000000-0000-4000-8000-00000000000a"
	workerA = "00000000-0000-4000-8000-0000000000aa"
)

// allEvents fills the tables. The names of the events are the last digits of their ids.
func allEvents(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	pgtest.Execute(t, pool, `
CREATE FUNCTION pg_temp.id(n int) RETURNS uuid LANGUAGE sql AS $$ SELECT ('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid $$;
INSERT INTO outbox.events (id, namespace, topic, version, tenant_id, dedupe_key, partition_key, payload, created_at)
SELECT pg_temp.id(n), CASE WHEN n = 15 THEN 'other' ELSE 'test' END, CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END, 1,
	CASE WHEN n = 12 OR n = 33 THEN '00000000-0000-4000-8000-00000000000a'::uuid END,
	CASE WHEN n = 12 THEN '00000000-0000-4000-8000-00000000000a/12' WHEN n = 31 THEN 'k' END, CASE WHEN n = 13 OR n = 32 THEN 'k' END,
	jsonb_build_object('n', n), now() - n * interval '1 h'
FROM generate_series(11, 36) AS n WHERE n BETWEEN 11 AND 16 OR n BETWEEN 21 AND 24 OR n BETWEEN 31 AND 36;
INSERT INTO outbox.queue (id, namespace, topic, tenant_id, lane, attempts, claim_no, next_attempt_at, locked_by, locked_until, failures)
SELECT e.id, e.namespace, e.topic, e.tenant_id, n % 5, 2, 2, now() + (n - 14) * interval '1 h',
	CASE WHEN n = 14 THEN '00000000-0000-4000-8000-0000000000aa'::uuid END, CASE WHEN n = 14 THEN now() + interval '1 h' END,
	CASE WHEN n = 11 THEN '[{"attempt": 1, "at": "2026-01-02T03:04:05.678901+00:00", "worker": "00000000-0000-4000-8000-0000000000aa", "error": "first"}, {"attempt": 2, "at": "2026-01-02T03:05:05+00:00", "worker": "00000000-0000-4000-8000-0000000000aa", "error": "it broke"}]'::jsonb END
FROM generate_series(11, 16) AS n JOIN outbox.events AS e ON e.id = pg_temp.id(n);
INSERT INTO outbox.dead_letters (id, namespace, topic, version, tenant_id, dedupe_key, partition_key, payload, created_at, attempts, error, died_at)
SELECT e.id, e.namespace, e.topic, e.version, e.tenant_id, e.dedupe_key, e.partition_key, e.payload, e.created_at, 3, 'boom ' || n, now() - n * interval '1 h'
FROM generate_series(24, 21, -1) AS n JOIN outbox.events AS e ON e.id = pg_temp.id(n) ORDER BY n DESC;
INSERT INTO outbox.delivered (id, namespace, topic, attempts, finalized_at, failures)
SELECT e.id, e.namespace, e.topic, 1, CASE WHEN n = 36 THEN now() ELSE now() - n * interval '1 h' END, CASE WHEN n = 34 THEN '[{"error": "it broke too"}]'::jsonb END
FROM generate_series(31, 36) AS n JOIN outbox.events AS e ON e.id = pg_temp.id(n);
INSERT INTO outbox.log (id, namespace, topic, partition_key, dedupe_key, payload, created_at)
SELECT pg_temp.id(n), 'test', CASE WHEN n % 2 = 0 THEN 'logeven' ELSE 'logodd' END, CASE WHEN n = 42 THEN 'k' END, CASE WHEN n = 43 THEN 'k' END, '{}', now() - (60 - n) * interval '1 h'
FROM generate_series(41, 44) AS n;
INSERT INTO outbox.dead_letters (listener, seq, bucket, id, namespace, topic, version, payload, created_at, attempts, error)
VALUES ('ears', 1, 0, pg_temp.id(41), 'test', 'logodd', 1, '{}', now() - interval '19 h', 7, 'deaf');
INSERT INTO outbox.parked (listener, key, seq, bucket, id, namespace, topic, version, partition_key, payload, created_at, attempts, retry_after, last_error)
VALUES ('ears', 'k', 2, 0, pg_temp.id(42), 'test', 'logeven', 1, 'k', '{}', now() - interval '18 h', 2, '2999-01-01Z', 'mute'),
	('eyes', 'k', 3, 0, pg_temp.id(43), 'test', 'logodd', 1, NULL, '{}', now() - interval '17 h', 0, NULL, NULL)`)
}

func eventID(n string) uuid.UUID {
	return uuid.MustParse("00000000-0000-7000-8000-" + strings.Repeat("0", 12-len(n)) + n)
}

// pagesOf returns the events that f selects, in pages of limit, as "11 12".
func pagesOf(t testing.TB, a *admin.Admin, f admin.Filter, limit int) string {
	t.Helper()
	var names []string
	page := admin.Page{Limit: limit}
	for range 1000 {
		p, err := a.Events(t.Context(), f, page)
		require.NoError(t, err)
		require.LessOrEqual(t, len(p.Events), limit)
		for _, e := range p.Events {
			name := strings.TrimLeft(e.ID.String()[24:], "0")
			if e.Listener != "" {
				name += "@" + e.Listener
			}
			names = append(names, name)
		}
		if p.Next == "" {
			return strings.Join(names, " ")
		}
		page.After = p.Next
	}
	require.Fail(t, "the list does not end")
	return ""
}

func TestEventsPagesThroughEachFilter(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	require.Empty(t, pagesOf(t, a, admin.Filter{}, 10))
	allEvents(t, pool)
	tenant := uuid.NullUUID{UUID: uuid.MustParse(tenantA), Valid: true}
	ago := func(hours float64) time.Time { return time.Now().Add(-time.Duration(hours * float64(time.Hour))) }
	for _, c := range []struct {
		want string
		f    admin.Filter
	}{
		{"11 12 13 14 15 16 43@eyes 42@ears 41@ears 21 22 23 24 36 31 32 33 34 35 44 43 42 41", admin.Filter{}},
		{"11 12 13 15 16", admin.Filter{Status: admin.StatusPending}},
		{"14", admin.Filter{Status: admin.StatusProcessing}},
		{"41@ears 21 22 23 24", admin.Filter{Status: admin.StatusDead}},
		{"36 31 32 33 34 35", admin.Filter{Status: admin.StatusDelivered}},
		{"43@eyes 42@ears", admin.Filter{Status: admin.StatusParked}},
		{"44 43 42 41", admin.Filter{Status: admin.StatusLogged}},
		{"15", admin.Filter{Namespace: "other"}},
		{"12 14 16 22 24 36 32 34", admin.Filter{Namespace: "test", Topic: "even"}},
		{"42@ears 41@ears", admin.Filter{Listener: "ears"}},
		{"41@ears", admin.Filter{Listener: "ears", Status: admin.StatusDead}},
		{"12 33", admin.Filter{TenantID: tenant}},
		{"33", admin.Filter{TenantID: tenant, Status: admin.StatusDelivered}},
		{"31 43 13 42@ears 32 42", admin.Filter{Key: "k"}},
		{"12", admin.Filter{Key: tenantA + "/12"}},
		{"11 34", admin.Filter{Error: "it broke"}},
		{"41@ears", admin.Filter{Error: "deaf"}},
		{"22", admin.Filter{Error: "boom 22"}},
		{"35 11", admin.Filter{IDs: []uuid.UUID{eventID("11"), eventID("35"), eventID("99")}}},
		{"11 12 13", admin.Filter{Status: admin.StatusPending, Since: ago(13.5)}},
		{"15 16", admin.Filter{Status: admin.StatusPending, Until: ago(13.5)}},
		{"31 32", admin.Filter{Status: admin.StatusDelivered, Since: ago(32.5)}},
		{"33 34 35 36", admin.Filter{Status: admin.StatusDelivered, Until: ago(32.5)}},
		{"33 34", admin.Filter{Status: admin.StatusDelivered, Since: ago(34.5), Until: ago(32.5)}},
		{"43 42", admin.Filter{Status: admin.StatusLogged, Since: ago(18.5), Until: ago(16.5)}},
	} {
		want, f := c.want, c.f
		for _, limit := range []int{1, 3, 1000} {
			got := pagesOf(t, a, f, limit)
			if f.IDs != nil {
				require.ElementsMatch(t, strings.Fields(want), strings.Fields(got), "%+v", f)
				continue
			}
			require.Equal(t, want, got, "%+v, %d per page", f, limit)
		}
	}
	for _, f := range []admin.Filter{
		{Listener: "ears", Status: admin.StatusPending}, {Group: "x"}, {Topic: "even"}, {Status: "gone"}, {IDs: []uuid.UUID{}}, {IDs: make([]uuid.UUID, 1001)},
	} {
		_, err := a.Events(t.Context(), f, admin.Page{})
		require.ErrorContains(t, err, "list events: filter: ", "%+v", f)
	}
	for _, p := range []admin.Page{{Limit: -1}, {Limit: 1001}, {After: "?"}, {After: "bm9uc2Vuc2U"}} {
		_, err := a.Events(t.Context(), admin.Filter{}, p)
		require.ErrorContains(t, err, "list events: ")
	}
}

// Rows that became due, were delivered or died at the same time are neither skipped nor repeated.
func TestEventsPagesThroughRowsOfOneTime(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	for lane := range 3 {
		putQueued(t, pool, queued{n: 7, lane: lane, random: true, due: "'2026-01-01Z'"})
	}
	pgtest.Execute(t, pool, `INSERT INTO outbox.delivered (id, namespace, topic, attempts, finalized_at)
		SELECT gen_random_uuid(), 'test', 't' || n % 2, 1, '2026-01-01Z' FROM generate_series(1, 20) AS n`)
	for status, n := range map[admin.Status]int{admin.StatusPending: 21, admin.StatusDelivered: 20} {
		for _, f := range []admin.Filter{{Status: status}, {Status: status, Namespace: "test"}} {
			names := strings.Fields(pagesOf(t, a, f, 4))
			seen := make(map[string]bool)
			for _, name := range names {
				seen[name] = true
			}
			require.Len(t, names, n, "%v", f)
			require.Len(t, seen, n, "%v", f)
		}
	}
}

func TestEventShowsAllOfAQueueEvent(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	_, err := a.Event(t.Context(), eventID("11"))
	require.ErrorIs(t, err, admin.ErrUnknownEvent)
	require.EqualError(t, err, "show event 00000000-0000-7000-8000-000000000011: unknown event")
	allEvents(t, pool)
	pgtest.Execute(t, pool, `UPDATE outbox.events SET headers = '{"a": "b"}', entity_type = 'turn', entity_id = 't1', entity_version = 3 WHERE id = $1`, eventID("11"))
	d, err := a.Event(t.Context(), eventID("11"))
	require.NoError(t, err)
	require.Equal(t, admin.StatusPending, d.Status)
	require.Equal(t, "test/odd", d.Name())
	require.Equal(t, 2, d.Attempts)
	require.Equal(t, 25, d.MaxAttempts)
	require.Equal(t, "it broke", d.LastError)
	require.Equal(t, map[string]string{"a": "b"}, d.Headers)
	require.Equal(t, outbox.Entity{Type: "turn", ID: "t1", Version: 3}, d.Entity)
	require.JSONEq(t, `{"n": 11}`, string(d.Payload))
	require.WithinDuration(t, time.Now().Add(-3*time.Hour), d.NextAttemptAt, time.Minute)
	require.WithinDuration(t, time.Now().Add(-11*time.Hour), d.CreatedAt, time.Minute)
	worker := uuid.MustParse(workerA)
	require.Len(t, d.Failures, 2)
	require.True(t, time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC).Equal(d.Failures[0].At))
	d.Failures[0].At = time.Time{}
	require.Equal(t, admin.Failure{Attempt: 1, Worker: worker, Error: "first"}, d.Failures[0])
	require.Equal(t, "it broke", d.Failures[1].Error)

	d, err = a.Event(t.Context(), eventID("14"))
	require.NoError(t, err)
	require.Equal(t, admin.StatusProcessing, d.Status)
	require.Equal(t, uuid.NullUUID{UUID: worker, Valid: true}, d.LockedBy)
	require.WithinDuration(t, time.Now().Add(time.Hour), d.LockedUntil, time.Minute)
	d, err = a.Event(t.Context(), eventID("34"))
	require.NoError(t, err)
	require.Equal(t, admin.StatusDelivered, d.Status)
	require.Len(t, d.Failures, 1, "also after it was delivered")
	require.WithinDuration(t, time.Now().Add(-34*time.Hour), d.FinalizedAt, time.Minute)
	d, err = a.Event(t.Context(), eventID("22"))
	require.NoError(t, err)
	require.Equal(t, admin.StatusDead, d.Status)
	require.Equal(t, "boom 22", d.LastError)
	// An event whose state is gone has none.
	pgtest.Execute(t, pool, "DELETE FROM outbox.queue WHERE id = $1", eventID("11"))
	d, err = a.Event(t.Context(), eventID("11"))
	require.NoError(t, err)
	require.Empty(t, d.Status)
}

func TestEventShowsWhereALogEventStands(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	h := runtimetest.NewNotes()
	blocked, parking, dead := runtimetest.NewNotes(), runtimetest.NewNotes(), runtimetest.NewNotes()
	blocked.Fail, parking.Fail, dead.Fail = runtimetest.FailFor("b"), runtimetest.FailFor("b"), runtimetest.FailFor("b")
	listeners := map[string]*listener.Listener{
		"fine":    runtimetest.ListenTo(t, pool, listener.Spec{Name: "fine"}, listener.Config{}, h),
		"blocked": runtimetest.ListenTo(t, pool, listener.Spec{Name: "blocked", Retry: runtimetest.LateRetry}, listener.Config{}, blocked),
		"parking": runtimetest.ListenTo(t, pool, listener.Spec{Name: "parking", ParkKeys: true, Retry: runtimetest.LateRetry}, listener.Config{}, parking),
		"killing": runtimetest.ListenTo(t, pool, listener.Spec{Name: "killing", Retry: outbox.Retry{MaxAttempts: 1, BaseDelay: time.Hour, MaxDelay: time.Hour}}, listener.Config{}, dead),
	}
	for _, l := range listeners {
		runtimetest.DrainAll(t, l)
	}
	runtimetest.PutAll(t, pool, "a1", "b1", "c1")
	standing := func(name string) string {
		d, err := a.Event(t.Context(), runtimetest.IDOf(t, pool, name))
		require.NoError(t, err)
		require.Equal(t, admin.StatusLogged, d.Status)
		require.Contains(t, string(d.Payload), `"key"`)
		var all []string
		for _, s := range d.Listeners {
			text := s.Listener + " " + string(s.Status)
			if s.Attempts > 0 {
				text += " after " + s.LastError
			}
			all = append(all, text)
		}
		return strings.Join(all, ", ")
	}
	require.Equal(t, "blocked pending, fine pending, killing pending, parking pending", standing("b1"))
	for _, l := range listeners {
		runtimetest.DrainAll(t, l)
	}
	require.Equal(t, "blocked delivered, fine delivered, killing delivered, parking delivered", standing("a1"))
	require.Equal(t, "blocked pending after handler failed, fine delivered, killing dead after handler failed, parking parked after handler failed", standing("b1"))
	require.Equal(t, "blocked pending, fine delivered, killing delivered, parking delivered", standing("c1"))

	// A listener that does not read the topic is left out, once a process has said so.
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics) VALUES (gen_random_uuid(), 'listener', 'fine', 'box', 1, '{"other/topic": {"version": 1}}')`)
	require.Equal(t, "blocked pending, killing delivered, parking delivered", standing("c1"))

	// A copy is shown when the log has pruned the event.
	id := runtimetest.IDOf(t, pool, "b1")
	pgtest.Execute(t, pool, "DELETE FROM outbox.log WHERE id = $1", id)
	d, err := a.Event(t.Context(), id)
	require.NoError(t, err)
	require.Contains(t, string(d.Payload), `"key"`)
	require.Len(t, d.Listeners, 2)
	require.Empty(t, d.Status)
}

// The log has no index of ids. An event is found by the time in its id, also in a long log.
func TestEventIsFoundInALongLog(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	pgtest.Execute(t, pool, `INSERT INTO outbox.log (id, namespace, topic, payload, created_at)
		SELECT (lpad(to_hex((extract(epoch FROM c) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 1, 15))::uuid,
			'test', 'said', jsonb_build_object('n', n), c
		FROM generate_series(1, 5000) AS n, LATERAL (SELECT now() - (5000 - n) * interval '1 minute' AS c) AS t`)
	for _, seq := range []int{1, 2500, 5000} {
		d, err := a.Event(t.Context(), pgtest.Value[uuid.UUID](t, pool, "SELECT id FROM outbox.log WHERE seq = $1", seq))
		require.NoError(t, err)
		require.JSONEq(t, pgtest.Value[string](t, pool, "SELECT payload::text FROM outbox.log WHERE seq = $1", seq), string(d.Payload))
	}
	random := pgtest.Value[uuid.UUID](t, pool, "INSERT INTO outbox.log (namespace, topic, payload) VALUES ('test', 'said', '{}') RETURNING id")
	_, err := a.Event(t.Context(), random)
	require.NoError(t, err)
}

// What one lane has behind its piece may be due before what another lane has in its own.
func TestEventsSkipsNothingBehindAPiece(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	putQueued(t, pool, queued{n: 6000, lane: 0, age: "2 h"})
	first := putQueued(t, pool, queued{n: 1, topic: "test/heard", lane: 0, age: "1 h"})
	second := putQueued(t, pool, queued{n: 1, topic: "test/heard", lane: 1, age: "30 m"})
	var ids []uuid.UUID
	for page := (admin.Page{Limit: 10}); ; {
		p, err := a.Events(t.Context(), admin.Filter{Namespace: "test", Topic: "heard"}, page)
		require.NoError(t, err)
		for _, e := range p.Events {
			ids = append(ids, e.ID)
		}
		if page.After = p.Next; page.After == "" {
			break
		}
	}
	require.Equal(t, []uuid.UUID{first, second}, ids)
}
