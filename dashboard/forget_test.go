package dashboard_test

import (
	"bytes"
	"context"
	"errors"
	"html"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/migrate"
)

func anybody(*http.Request) error { return nil }

// forget sends the form that asks whom to forget, or its confirmation if pairs have a count.
func (s *site) forget(pairs ...string) answer {
	s.t.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return s.send(s.request(http.MethodPost, "/forget", form))
}

// alert returns what the page says is wrong.
func alert(t testing.TB, a answer) string {
	t.Helper()
	found := regexp.MustCompile(`<p class="stale" role="alert">(.*?)</p>`).FindStringSubmatch(a.body)
	require.NotNil(t, found, a.body)
	return html.UnescapeString(textOf(found[1]))
}

func countOrders(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.events WHERE entity_type = 'order'")
}

// logs is a log that goroutines write.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestForgetGoesFromFormToRow: the plan, its refusal while something is undelivered, the confirmation with the count, the rows and
// the audit. Neither an address nor the log names whom it was about.
func TestForgetGoesFromFormToRow(t *testing.T) {
	t.Parallel()
	pool := ordered(t)
	var log logs
	s := open(t, dashboard.Config{Pool: pool, AuthorizeForget: anybody, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.Contains(t, s.ok("/"), ">Forget</a>")
	for _, path := range []string{"/life?entity=order/4711", "/events?tenant=" + tenantID, "/life?tenant=" + tenantID} {
		require.Contains(t, s.ok(path), ">Forget…</button>", path)
	}
	require.NotContains(t, s.ok("/life?correlation=request+7"), ">Forget…</button>")

	a := s.forget("entity", " order/4711 ")
	require.Equal(t, http.StatusOK, a.status)
	text := textOf(a.body)
	for _, part := range []string{
		"Forget entity order/4711: 3 rows.", "shop/placed 1 0 0 1", "events 1 events of queue topics", "queue 1 ",
		"entity_versions 1 the versions that consumers have seen", "processed_events 1 which events consumers have handled (kept for",
		placedID + " shop/placed queue", "1 event is not delivered yet. Wait until nothing is, or choose above", "Brokers keep what was published.",
	} {
		require.Contains(t, text, part)
	}
	require.NotContains(t, a.body, `name="count"`, "it would be refused")
	a = s.forget("entity", "order/4711", "count", "3", "why", "ticket 812")
	require.Equal(t, http.StatusConflict, a.status)
	require.Equal(t, "Nothing was changed: see below why not.", alert(t, a))

	a = s.forget("entity", "order/4711", "undelivered", "1")
	require.NotContains(t, a.body, "Wait until")
	form := s.formOf(a.body)
	require.Equal(t, url.Values{"entity": {"order/4711"}, "tenant": {""}, "undelivered": {"1"}}, form)
	confirm := func(count, why string) answer {
		form.Set("count", count)
		form.Set("why", why)
		return s.send(s.request(http.MethodPost, "/forget", form))
	}
	for want, typed := range map[string][2]string{
		"Nothing was changed: you have typed 4, and there are 3 rows now.":                                {"4", "ticket 812"},
		"Nothing was changed: you have typed , and there are 3 rows now.":                                 {"", "ticket 812"},
		"Nothing was changed: you have typed all, and there are 3 rows now.":                              {"all", "ticket 812"},
		"Nothing was changed: say why, because this is recorded in the audit.":                            {"3", " "},
		"Nothing was changed: Who and Why stay in the audit: do not name the tenant or the entity there.": {"3", "of Order/4711"},
	} {
		a := confirm(typed[0], typed[1])
		require.Contains(t, []int{http.StatusBadRequest, http.StatusConflict}, a.status, want)
		require.Equal(t, want, alert(t, a))
	}
	require.Equal(t, 1, countOrders(t, pool))
	require.NotContains(t, audits(t, pool), "forget")

	a = confirm("3", "ticket 812")
	require.Equal(t, "Forgotten: 3 rows were deleted, 1 of them events. Their dedupe keys are free again.", said(t, a))
	require.Equal(t, "/forget?did=forget&n=3&of=1", a.url)
	require.Zero(t, countOrders(t, pool))
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.events"), "the others stay")
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.processed_events"))
	require.Contains(t, audits(t, pool), "tester forget ticket 812 1")
	require.NotContains(t, pgtest.Value[string](t, pool, "SELECT string_agg(a::text, ' ') FROM outbox.audit AS a WHERE act = 'forget'"), "4711")
	require.Contains(t, s.ok("/audit"), "an entity order, 3 rows")
	require.Contains(t, log.String(), `msg="dashboard: acted" act=forget who=tester events=1 rows=3`)
	require.NotContains(t, log.String(), "4711")
}

// TestForgetTenantWithItsRecords: rows that stay unless somebody asks for them are not counted.
func TestForgetTenantWithItsRecords(t *testing.T) {
	t.Parallel()
	pool := ordered(t)
	pgtest.Execute(t, pool, "DELETE FROM outbox.queue WHERE id = '"+placedID+"'")
	pgtest.Execute(t, pool, `INSERT INTO outbox.delivered (id, finalized_at, attempts, namespace, topic) VALUES ('`+placedID+`', now(), 1, 'shop', 'placed')`)
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (who, act, scope) VALUES ('ann', 'pause', '{"tenant_id": "`+tenantID+`"}')`)
	s := open(t, dashboard.Config{Pool: pool, AuthorizeForget: anybody, Prefix: "/ops"})
	require.Contains(t, textOf(s.forget("tenant", strings.ToUpper(tenantID)).body), "Forget tenant "+tenantID+": 3 rows.")
	a := s.forget("tenant", tenantID, "processed", "1")
	require.Contains(t, textOf(a.body), ": 4 rows.")
	form := s.formOf(a.body)
	form.Set("count", " 4 ")
	form.Set("why", "ticket 813")
	require.Contains(t, said(t, s.send(s.request(http.MethodPost, "/forget", form))), "Forgotten: 4 rows were deleted, 1 of them events.")
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.processed_events"))
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.audit AS a WHERE a::text LIKE '%"+tenantID+"%'"))
	a = s.forget("tenant", tenantID)
	require.Contains(t, textOf(a.body), "Nothing is kept of tenant "+tenantID+".")
	require.NotContains(t, a.body, `name="count"`)
	require.Equal(t, "Nothing was changed: there is nothing to forget.", alert(t, s.forget("tenant", tenantID, "count", "0", "why", "x")))
}

// TestForgetRefusesBadInput in one sentence, with nothing done.
func TestForgetRefusesBadInput(t *testing.T) {
	t.Parallel()
	pool := ordered(t)
	pgtest.Execute(t, pool, `INSERT INTO outbox.events (namespace, topic, payload, tenant_id, entity_type, entity_id) VALUES ('shop', 'placed', '{}', gen_random_uuid(), 'order', '4711')`)
	s := open(t, dashboard.Config{Pool: pool, AuthorizeForget: anybody})
	for _, c := range []struct {
		status int
		want   string
		form   []string
	}{
		{http.StatusBadRequest, `Nothing is named: give a tenant, an entity, or both.`, nil},
		{http.StatusBadRequest, `tenant: "ann" is not a valid tenant: use its UUID`, []string{"tenant", "ann"}},
		{http.StatusBadRequest, `is not a valid tenant: use its UUID`, []string{"tenant", "00000000-0000-0000-0000-000000000000"}},
		{http.StatusBadRequest, `entity: "order" is not an entity: use its type and its id, like order/4711`, []string{"entity", "order"}},
		{http.StatusBadRequest, `is not an entity`, []string{"entity", "/4711"}},
		{http.StatusBadRequest, `is not an entity`, []string{"entity", "order/"}},
		{http.StatusBadRequest, `"Of every tenant" is for an entity: give one, or clear it.`, []string{"tenant", tenantID, "any_tenant", "1"}},
		{http.StatusBadRequest, `"Of every tenant" and a tenant exclude each other: clear one of them.`, []string{"tenant", tenantID, "entity", "order/4711", "any_tenant", "1"}},
		{http.StatusBadRequest, `the type and the id of an entity are UTF-8 of up to`, []string{"entity", "order/" + strings.Repeat("x", 4000)}},
		{http.StatusBadRequest, `the type and the id of an entity are UTF-8 of up to`, []string{"entity", "order/a\x00b"}},
		{http.StatusBadRequest, `the type and the id of an entity are UTF-8 of up to`, []string{"entity", "order/\xff"}},
		{http.StatusNotFound, `entity: no event has an entity of the type "ordr". The types here: order.`, []string{"entity", "ordr/4711"}},
		{http.StatusNotFound, `no event has an entity of the type`, []string{"entity", "</script>/" + hostile}},
	} {
		for _, count := range []string{"", "1"} {
			form := c.form
			if count != "" {
				form = append([]string{"count", count, "why", "ticket", "undelivered", "1"}, form...)
			}
			a := s.forget(form...)
			require.Equal(t, c.status, a.status, c.want)
			require.Contains(t, alert(t, a), c.want)
			for i := 0; i+1 < len(c.form); i += 2 {
				require.NotContains(t, a.body, `"></script>`)
				require.NotContains(t, a.body, "<img")
			}
		}
	}
	a := s.forget("entity", "order/4712")
	require.Equal(t, http.StatusOK, a.status)
	require.Contains(t, textOf(a.body), "Nothing is kept of entity order/4712.")

	a = s.forget("entity", "order/4711", "undelivered", "1", "count", "4", "why", "ticket")
	require.Equal(t, http.StatusConflict, a.status)
	require.Contains(t, textOf(a.body), "order/4711 is an entity of several tenants: "+tenantID+", ")
	require.Contains(t, textOf(a.body), "Name one of them above, or choose every tenant.")
	require.Equal(t, 2, countOrders(t, pool))
	require.Contains(t, textOf(s.forget("entity", "order/4711", "undelivered", "1", "any_tenant", "1").body), "Forget entity order/4711 of every tenant: 4 rows")
	require.Contains(t, textOf(s.forget("entity", "order/4711", "undelivered", "1", "tenant", tenantID).body), "Forget entity order/4711 of tenant "+tenantID+": 3 rows")
	require.Equal(t, http.StatusBadRequest, s.forget("entity", strings.Repeat("x", 70_000)).status)
	require.NotContains(t, audits(t, pool), "forget")
}

// TestForgetWaitsForAReplay that may have the same events.
func TestForgetWaitsForAReplay(t *testing.T) {
	t.Parallel()
	pool := ordered(t)
	s := open(t, dashboard.Config{Pool: pool, AuthorizeForget: anybody})
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (who, act, scope, busy_until) VALUES ($1, 'replay', '{}', now() + interval '1 h')`, hostile)
	a := s.forget("entity", "order/4711", "undelivered", "1")
	require.Contains(t, textOf(a.body), "has been running since")
	require.NotContains(t, a.body, "<img")
	require.NotContains(t, a.body, `name="count"`)
	a = s.forget("entity", "order/4711", "undelivered", "1", "count", "3", "why", "ticket")
	require.Equal(t, http.StatusConflict, a.status)
	require.Equal(t, 1, countOrders(t, pool))
	pgtest.Execute(t, pool, "UPDATE outbox.audit SET busy_until = NULL")
	require.Contains(t, said(t, s.forget("entity", "order/4711", "undelivered", "1", "count", "3", "why", "ticket")), "Forgotten: 3 rows")
}

// holdStates locks the states of all events until release, so that a forget waits.
func holdStates(t testing.TB, pool *pgxpool.Pool) (release func()) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	for _, table := range []string{"queue", "delivered"} {
		_, err = tx.Exec(t.Context(), "SELECT FROM outbox."+table+" FOR UPDATE")
		require.NoError(t, err)
	}
	return func() { require.NoError(t, tx.Rollback(t.Context())) }
}

// TestForgetGoesOnByItself if it takes longer than somebody waits.
func TestForgetGoesOnByItself(t *testing.T) {
	t.Parallel()
	pool := ordered(t)
	s := open(t, dashboard.Config{Pool: pool, AuthorizeForget: anybody})
	s.page.WaitForForgets(time.Millisecond)
	release := holdStates(t, pool)
	a := s.forget("entity", "order/4711", "undelivered", "1", "count", "3", "why", "ticket")
	require.Equal(t, "It takes longer, and goes on by itself. The audit counts the rows that are deleted, and says when it has ended.", said(t, a))
	require.Equal(t, "/forget?did=forget-runs", a.url)
	pgtest.Settles(t, pool, 1, "SELECT count(*)::int FROM outbox.audit WHERE act = 'forget'")
	require.Contains(t, textOf(s.ok("/audit")), "an entity order, 0 rows; it has not ended: entity order/4711")
	require.Contains(t, textOf(s.forget("entity", "order/4711", "undelivered", "1").body), "A forget of it was begun and has not ended: this goes on with it.")
	release()
	pgtest.Settles(t, pool, 1, "SELECT count(*)::int FROM outbox.audit WHERE act = 'forget' AND busy_until IS NULL")
	require.Zero(t, countOrders(t, pool))
}

// TestForgetEndsWithThePage, and another page goes on with it.
func TestForgetEndsWithThePage(t *testing.T) {
	t.Parallel()
	pool := ordered(t)
	s := open(t, dashboard.Config{Pool: pool, AuthorizeForget: anybody})
	s.page.WaitForForgets(time.Millisecond)
	release := holdStates(t, pool)
	form := []string{"entity", "order/4711", "undelivered", "1", "count", "3", "why", "ticket"}
	s.forget(form...)
	pgtest.Settles(t, pool, 1, "SELECT count(*)::int FROM outbox.audit WHERE act = 'forget'")
	s.page.Close()
	release()
	require.Equal(t, 1, countOrders(t, pool))
	require.Equal(t, http.StatusServiceUnavailable, s.forget(form...).status)
	s = open(t, dashboard.Config{Pool: pool, AuthorizeForget: anybody})
	require.Contains(t, s.forget(form[:4]...).body, "A forget of it was begun and has not ended: this goes on with it.")
	require.Contains(t, said(t, s.forget(form...)), "Forgotten: 3 rows")
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.audit WHERE act = 'forget' AND busy_until IS NULL"))
}

// TestForgetLeavesWhatComesMeanwhile and is not delivered, and says so.
func TestForgetLeavesWhatComesMeanwhile(t *testing.T) {
	t.Parallel()
	pool := ordered(t)
	pgtest.Execute(t, pool, "DELETE FROM outbox.queue WHERE id = '"+placedID+"'")
	pgtest.Execute(t, pool, `INSERT INTO outbox.delivered (id, finalized_at, attempts, namespace, topic) VALUES ('`+placedID+`', now(), 1, 'shop', 'placed')`)
	s := open(t, dashboard.Config{Pool: pool, AuthorizeForget: anybody})
	s.page.WaitForForgets(pgtest.Patience)
	release := holdStates(t, pool)
	answers := make(chan answer, 1)
	go func() { answers <- s.forget("entity", "order/4711", "count", "3", "why", "ticket") }()
	pgtest.Settles(t, pool, 1, "SELECT count(*)::int FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())")
	pgtest.Execute(t, pool, `WITH e AS (INSERT INTO outbox.events (namespace, topic, payload, tenant_id, entity_type, entity_id) VALUES ('shop', 'placed', '{}', '`+tenantID+`', 'order', '4711') RETURNING id)
		INSERT INTO outbox.queue (id, namespace, topic) SELECT id, 'shop', 'placed' FROM e`)
	release()
	a := pgtest.Receive(t, answers, "the answer")
	require.Equal(t, http.StatusConflict, a.status)
	require.Equal(t, "1 event has come meanwhile and is not delivered yet. Everything else was deleted. Stop what enqueues, wait, and forget again.", alert(t, a))
	require.Equal(t, 1, countOrders(t, pool))
}

// TestForgetNeedsItsOwnPermission: it is off by default. A page that is read-only has no form.
func TestForgetNeedsItsOwnPermission(t *testing.T) {
	t.Parallel()
	pool := ordered(t)
	confirmed := []string{"entity", "order/4711", "undelivered", "1", "count", "3", "why", "ticket"}
	for name, c := range map[string]struct {
		cfg       dashboard.Config
		get, post int
	}{
		"nobody said so": {dashboard.Config{}, http.StatusForbidden, http.StatusForbidden},
		"refused":        {dashboard.Config{AuthorizeForget: func(*http.Request) error { return errors.New("no") }}, http.StatusForbidden, http.StatusForbidden},
		"read-only":      {dashboard.Config{AuthorizeForget: anybody, ReadOnly: true}, http.StatusNotFound, http.StatusMethodNotAllowed},
		"enqueue only":   {dashboard.Config{AuthorizeEnqueue: func(*http.Request, string) error { return nil }}, http.StatusForbidden, http.StatusForbidden},
	} {
		c.cfg.Pool = pool
		s := open(t, c.cfg)
		for _, path := range []string{"/", "/life?entity=order/4711", "/events?tenant=" + tenantID} {
			require.NotContains(t, s.ok(path), "/forget", name)
		}
		require.Equal(t, c.get, s.get("/forget").status, name)
		require.Equal(t, c.post, s.forget(confirmed...).status, name)
		require.Equal(t, c.post, s.forget("entity", "order/4711").status, name)
		require.NotContains(t, s.forget("entity", "order/4711").body, "shop/placed", name)
	}
	s := open(t, dashboard.Config{Pool: pool, AuthorizeForget: anybody})
	for _, header := range []string{"Sec-Fetch-Site", "Origin"} {
		foreign := s.request(http.MethodPost, "/forget", url.Values{"entity": {"order/4711"}, "undelivered": {"1"}, "count": {"3"}, "why": {"ticket"}})
		foreign.Header.Set(header, map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example.com"}[header])
		require.Equal(t, http.StatusForbidden, s.send(foreign).status, header)
	}
	require.NotContains(t, textOf(s.ok("/forget?entity=order/4711&count=3")), "4711", "an address names nobody")
	require.Equal(t, 1, countOrders(t, pool))
	require.NotContains(t, audits(t, pool), "forget")
}

// TestForgetNeedsARoleOfTheDatabase: that of an eraser. Others are told so, and nothing is done.
func TestForgetNeedsARoleOfTheDatabase(t *testing.T) {
	t.Parallel()
	pool := ordered(t)
	form := []string{"entity", "order/4711", "undelivered", "1", "count", "3", "why", "ticket"}
	roles := runtimetest.RolePools(t, pool)
	for _, role := range []migrate.Role{migrate.Reader, migrate.Operator} {
		a := open(t, dashboard.Config{Pool: roles[role], AuthorizeForget: anybody}).forget(form...)
		require.Equal(t, http.StatusInternalServerError, a.status, role)
		require.Contains(t, a.body, "Forgetting a tenant or an entity needs the role of an eraser", role)
		require.Equal(t, 1, countOrders(t, pool), role)
		require.NotContains(t, audits(t, pool), "forget", role)
	}
	s := open(t, dashboard.Config{Pool: roles[migrate.Eraser], AuthorizeForget: anybody})
	require.Contains(t, said(t, s.forget(form...)), "Forgotten: 3 rows")
}
