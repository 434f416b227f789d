package dashboard_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestActsGoFromClickToRow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	once := outbox.Retry{MaxAttempts: 1, BaseDelay: time.Hour, MaxDelay: time.Hour}
	l := deaf(t, pool, once)
	s := open(t, dashboard.Config{Pool: pool})

	require.Equal(t, "Paused. Running processes honour it within one poll interval.", said(t, s.confirm(s.link("/listeners/ears", "Pause…"), "until", "2h", "why", "lunch")))
	require.InDelta(t, 7200, pgtest.Value[float64](t, pool, "SELECT extract(epoch FROM until - now())::float8 FROM outbox.pauses WHERE listener = 'ears'"), 60)
	require.Contains(t, s.ok("/"), "tester", "the pause is listed with its author")
	require.Equal(t, "Resumed.", said(t, s.confirm(s.link("/listeners/ears", "Resume…"))))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.pauses"))

	pgtest.Eventually(t, func() bool { return strings.Contains(s.ok("/dead"), "Replay…") })
	back := s.confirm(s.link("/dead", "Replay…"))
	require.Equal(t, "1 replayed.", said(t, back))
	require.Equal(t, "/dead?did=replay&n=1&of=1", back.url)
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
	require.Equal(t, 1, runtimetest.DrainAll(t, l).Dead, "it has failed again")

	id := runtimetest.IDOf(t, pool, "b1").String()
	discard := s.link("/events/"+id, "Discard…")
	a := s.confirm(discard)
	require.Equal(t, http.StatusBadRequest, a.status)
	require.Contains(t, a.body, "why: say why, because this is recorded in the audit")
	require.Equal(t, "1 discarded.", said(t, s.confirm(discard, "why", "test data")))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))

	rewind := s.link("/listeners/ears", "Rewind…")
	require.NotContains(t, s.ok(rewind), `method="post"`, "it asks first to which time")
	preview := rewind + "&to=earliest"
	require.Contains(t, s.ok(preview), "Afterwards it has 3 events before it.")
	require.Equal(t, "Rewound. The listener has 3 events before it.", said(t, s.confirm(preview, "why", "again")))
	require.Equal(t, 1, runtimetest.DrainAll(t, l).Dead)

	require.Equal(t, "Detached. The log is no longer kept for the listener.", said(t, s.confirm(s.link("/listeners/ears", "Detach…"), "why", "gone")))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.listeners"))
	require.Equal(t, "tester pause lunch 0; tester resume  0; tester replay  1; tester discard test data 1; tester rewind again 3; tester detach gone 0", audits(t, pool))
	for _, part := range []string{"lunch", "rewind", "detach"} {
		require.Contains(t, s.ok("/audit"), part)
	}
}

func TestSkipGoesFromClickToRow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	deaf(t, pool, runtimetest.LateRetry)
	s := open(t, dashboard.Config{Pool: pool})
	id := runtimetest.IDOf(t, pool, "b1").String()
	skip := s.link("/listeners/ears", "Skip…")
	require.Contains(t, s.ok(skip), "Skip 1 event: "+id)
	require.Equal(t, "Skipped. The event is a dead letter of the listener now.", said(t, s.confirm(skip, "why", "broken")))
	require.Equal(t, id, pgtest.Value[string](t, pool, "SELECT id::text FROM outbox.dead_letters"))
	a := s.get(skip)
	require.Equal(t, http.StatusConflict, a.status)
	require.Contains(t, a.body, "Nothing was changed.")
}

// TestActsChangeNoMoreThanWasShown has an event die between the preview and the confirmation.
func TestActsChangeNoMoreThanWasShown(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	dead := func() {
		pgtest.Execute(t, pool, `WITH e AS (INSERT INTO outbox.events (namespace, topic, payload) VALUES ('test', 'ping', '{}') RETURNING id, namespace, topic, version, payload, created_at)
			INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, created_at, attempts, max_attempts, claim_no, lane, error)
			SELECT id, namespace, topic, version, payload, created_at, 1, 25, 1, 3, 'refused' FROM e`)
	}
	dead()
	dead()
	s := open(t, dashboard.Config{Pool: pool})
	form := s.form("/acts/discard?topic=test/ping")
	require.Equal(t, "2", form.Get("count"))
	dead()
	form.Set("why", "test")
	require.Equal(t, "2 discarded.", said(t, s.send(s.request(http.MethodPost, "/acts/discard", form))))
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
	require.Equal(t, 3, pgtest.Value[int](t, pool, "SELECT max(no)::int FROM outbox.dead_letters"), "the one that died last")
	form.Del("count")
	require.Equal(t, http.StatusBadRequest, s.send(s.request(http.MethodPost, "/acts/discard", form)).status)
	require.Equal(t, http.StatusBadRequest, s.send(s.request(http.MethodPost, "/acts/pause", nil)).status)
}

// TestForgetProcessGoesFromClickToRow: the button is there for what is gone, and the act refuses what runs.
func TestForgetProcessGoesFromClickToRow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, seen_at) VALUES
		('00000000-0000-0000-0000-000000000001', 'dispatcher', 'jobs', 'box', 7, '{}', now()),
		('00000000-0000-0000-0000-000000000002', 'listener', 'ears', 'box', 8, '{}', now() - interval '2 h')`)
	require.NotContains(t, open(t, dashboard.Config{Pool: pool, ReadOnly: true}).ok("/"), "Forget…")
	require.NotContains(t, open(t, dashboard.Config{Pool: pool, GoneAfter: time.Hour}).ok("/"), "Forget…")
	s := open(t, dashboard.Config{Pool: pool})
	forget := s.link("/", "Forget…")
	require.Contains(t, s.ok(forget), "Forget listener ears at box, pid 8.")
	require.Equal(t, http.StatusConflict, s.get("/acts/forget-process?process=00000000-0000-0000-0000-000000000001").status)
	require.Equal(t, http.StatusBadRequest, s.get("/acts/forget-process?process=1").status)
	require.Equal(t, "Forgotten. A process that still runs comes back with its next beat.", said(t, s.confirm(forget, "why", "scrapped")))
	require.Equal(t, "dispatcher", pgtest.Value[string](t, pool, "SELECT string_agg(kind, ' ') FROM outbox.processes"))
	require.Equal(t, "tester forget-process scrapped 0", audits(t, pool))
	require.Equal(t, http.StatusNotFound, s.get(forget).status)
	_, err := dashboard.New(dashboard.Config{Pool: pool, GoneAfter: -1})
	require.EqualError(t, err, "new dashboard: config: GoneAfter -1ns is negative")
}
