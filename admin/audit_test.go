package admin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

// auditText is the audit, the oldest entry first.
func auditText(t testing.TB, a *admin.Admin) string {
	t.Helper()
	p, err := a.Audit(t.Context(), admin.AuditFilter{}, admin.Page{})
	require.NoError(t, err)
	var lines []string
	for i := len(p.Entries) - 1; i >= 0; i-- {
		e := p.Entries[i]
		require.WithinDuration(t, time.Now(), e.At, time.Hour)
		require.True(t, json.Valid(e.Filter))
		lines = append(lines, fmt.Sprintf("%s|%s|%s|%s|%d", e.Who, e.Action, e.Why, e.Scope, e.Events))
	}
	return strings.Join(lines, "\n")
}

// TestEveryActIsAudited: acts that take no Act leave a row too, with the person of As or with the user of the database.
func TestEveryActIsAudited(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	for _, c := range []struct {
		as        func(*admin.Admin) *admin.Admin
		who, why  string
		parksKeys bool
	}{
		{func(a *admin.Admin) *admin.Admin { return a.As("ann", "a release") }, "ann", "a release", false},
		{func(a *admin.Admin) *admin.Admin { return a.As("ann", "") }, "ann", "", true},
		{func(a *admin.Admin) *admin.Admin { return a }, "database user postgres", "", false},
	} {
		pool := pgtest.Database(t)
		a := c.as(runtimetest.AdminOf(t, pool))
		h := runtimetest.NewNotes()
		h.Fail = runtimetest.FailFor("b")
		l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: runtimetest.LateRetry, ParkKeys: c.parksKeys}, listener.Config{}, h)
		runtimetest.PutAll(t, pool, "a1", "b1", "a2")
		runtimetest.DrainAll(t, l)
		to := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

		// Previews, and what fails, leave none.
		p := a.Preview()
		_, err := p.Skip(t.Context(), "ears", uuid.Nil)
		require.NoError(t, err)
		_, err = p.Rewind(t.Context(), "ears", to)
		require.NoError(t, err)
		_, err = p.Detach(t.Context(), "ears")
		require.NoError(t, err)
		_, err = p.Prune(t.Context(), map[string]outbox.Retention{"test/said": {}})
		require.NoError(t, err)
		_, err = a.Skip(t.Context(), "ears", uuid.New())
		require.ErrorIs(t, err, admin.ErrNotSkippable)
		_, err = a.Detach(t.Context(), "eyes")
		require.ErrorAs(t, err, new(*admin.UnknownListenerError))
		_, err = a.Rebase(t.Context())
		require.NoError(t, err, "nothing is to be rebased")
		require.Empty(t, auditText(t, a))

		b1 := runtimetest.IDOf(t, pool, "b1")
		runtimetest.Skip(t, a, uuid.Nil)
		require.Equal(t, 3, runtimetest.Rewind(t, a, to))
		runtimetest.Rewind(t, a, time.Time{})
		pgtest.Execute(t, pool, "UPDATE outbox.listeners SET system_id = system_id + 1, lo = '1:1:'")
		_, err = a.Rebase(t.Context())
		require.NoError(t, err)
		_, err = a.Detach(t.Context(), "ears")
		require.NoError(t, err)
		pgtest.Execute(t, pool, "UPDATE outbox.log SET created_at = created_at - interval '1 year'")
		for range 2 { // the second one deletes nothing
			_, err = a.Prune(t.Context(), map[string]outbox.Retention{"test/said": {Dead: 100 * 24 * time.Hour}})
			require.NoError(t, err)
		}
		var want []string
		for _, act := range []string{
			"skip|%s|listener ears, test/said, event " + b1.String() + "|1",
			"rewind|%s|listener ears, to 2026-05-01T12:00:00Z|3",
			"rewind|%s|listener ears, to the start of the log|3",
			"rebase|%s|listeners ears|3",
			"detach|%s|listener ears|0",
			"prune|%s|test/said|3",
		} {
			want = append(want, c.who+"|"+fmt.Sprintf(act, c.why))
		}
		require.Equal(t, strings.Join(want, "\n"), auditText(t, a))
	}
}

// TestAsFillsTheAct: an Act without Who and Why takes those of As.
func TestAsFillsTheAct(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	manyDead(t, pool, 4)
	namespace := pgtest.Value[string](t, pool, "SELECT namespace FROM outbox.dead_letters LIMIT 1")
	ann := a.As("ann", "a release")
	require.NoError(t, ann.Pause(t.Context(), admin.Scope{Namespace: namespace}, admin.Act{}))
	_, err := ann.Resume(t.Context(), admin.Scope{Namespace: namespace}, admin.Act{Who: "bob"})
	require.NoError(t, err)
	_, err = ann.Replay(t.Context(), admin.Filter{}, admin.Act{Limit: 1, Why: "it works again"})
	require.NoError(t, err)
	_, err = ann.Discard(t.Context(), admin.Filter{Namespace: namespace}, admin.Act{})
	require.NoError(t, err)
	require.Equal(t, "ann|pause|a release|"+namespace+"|0\nbob|resume|a release|"+namespace+"|0\n"+
		"ann|replay|it works again|at most 1|1\nann|discard|a release|"+namespace+"|3", auditText(t, a))

	_, err = a.Discard(t.Context(), admin.Filter{}, admin.Act{Who: "ann"})
	require.EqualError(t, err, "discard: act: Why is empty: say why the events may be lost")
	_, err = a.As(strings.Repeat("x", 1001), "").Detach(t.Context(), "ears")
	require.ErrorContains(t, err, "detach listener: act: Who and Why must be UTF-8 of up to 1000 bytes")
	_, err = a.As("ann", "\xff").Prune(t.Context(), map[string]outbox.Retention{"test/said": {}})
	require.ErrorContains(t, err, "prune: act: Who and Why must be UTF-8 of up to 1000 bytes")
}

func TestAuditPages(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	p, err := a.Audit(t.Context(), admin.AuditFilter{}, admin.Page{})
	require.NoError(t, err)
	require.Equal(t, admin.AuditPage{}, p)
	pgtest.Execute(t, pool, `INSERT INTO outbox.audit (at, who, act, why, scope, events)
		SELECT '2026-05-01 00:00:00Z'::timestamptz + n * interval '1 h', CASE WHEN n % 2 = 0 THEN 'ann' ELSE 'bob' END,
			CASE WHEN n % 3 = 0 THEN 'replay' ELSE 'pause' END, 'why ' || n, jsonb_build_object('namespace', 'jobs', 'topic', 't' || n), n
		FROM generate_series(1, 7) AS n`)
	list := func(f admin.AuditFilter, page admin.Page) (events []int64, next string) {
		t.Helper()
		p, err := a.Audit(t.Context(), f, page)
		require.NoError(t, err)
		for _, e := range p.Entries {
			events = append(events, e.Events)
		}
		return events, p.Next
	}
	page := admin.Page{Limit: 3}
	for _, want := range [][]int64{{7, 6, 5}, {4, 3, 2}, {1}} {
		var got []int64
		got, page.After = list(admin.AuditFilter{}, page)
		require.Equal(t, want, got)
		require.Equal(t, len(want) < 3, page.After == "")
	}
	got, next := list(admin.AuditFilter{}, admin.Page{Limit: 7})
	require.Equal(t, []int64{7, 6, 5, 4, 3, 2, 1}, got)
	require.Empty(t, next, "exactly full, and the last one")
	got, next = list(admin.AuditFilter{Who: "ann"}, admin.Page{Limit: 2})
	require.Equal(t, []int64{6, 4}, got)
	got, _ = list(admin.AuditFilter{Who: "ann"}, admin.Page{Limit: 2, After: next})
	require.Equal(t, []int64{2}, got)
	got, _ = list(admin.AuditFilter{Action: "replay", Who: "bob"}, admin.Page{})
	require.Equal(t, []int64{3}, got)
	at := func(hour int) time.Time { return time.Date(2026, 5, 1, hour, 0, 0, 0, time.UTC) }
	got, _ = list(admin.AuditFilter{Since: at(3), Until: at(5)}, admin.Page{})
	require.Equal(t, []int64{4, 3}, got)
	p, err = a.Audit(t.Context(), admin.AuditFilter{}, admin.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, admin.AuditEntry{
		No: p.Entries[0].No, At: p.Entries[0].At, Who: "bob", Action: "pause", Why: "why 7", Scope: "jobs/t7",
		Filter: json.RawMessage(`{"topic": "t7", "namespace": "jobs"}`), Events: 7,
	}, p.Entries[0])
	require.WithinDuration(t, at(7), p.Entries[0].At, 0)

	for _, c := range []struct {
		f    admin.AuditFilter
		p    admin.Page
		want string
	}{
		{p: admin.Page{Limit: 1001}, want: "list audit: page: Limit 1001 is not from 1 to 1000"},
		{p: admin.Page{Limit: -1}, want: "list audit: page: Limit -1 is not from 1 to 1000"},
		{p: admin.Page{After: "x"}, want: "list audit: page: After is not the Next of a page"},
		{p: admin.Page{After: "-1"}, want: "list audit: page: After is not the Next of a page"},
		{f: admin.AuditFilter{Since: at(5), Until: at(5)}, want: "list audit: filter: Since is not before Until"},
	} {
		_, err := a.Audit(t.Context(), c.f, c.p)
		require.EqualError(t, err, c.want)
	}
}

// Scopes are shown in words. Those that somebody has written by hand are shown as they are.
func TestAuditScopes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	const id = "0190a5c2-7b1e-7c00-8000-0123456789ab"
	for scope, want := range map[string]string{
		`{}`:                          "everything",
		`{"listener": "ears"}`:        "listener ears",
		`{"namespace": "jobs"}`:       "jobs",
		`{"tenant_id": "` + id + `"}`: "tenant " + id,
		`{"ids": ["` + id + `"]}`:     "event " + id,
		`{"ids": ["` + id + `"], "more_ids": 1999}`: "2000 events",
		`{"id": "` + id + `", "edited": true}`:      "event " + id + ", with another payload",
		`{"namespace": "jobs", "topic": "mail", "until": "2026-05-01T12:00:00.5Z", "tenant_id": "` + id + `"}`: "tenant " + id + " of jobs/mail, until 2026-05-01T12:00:00Z",
		`{"error": "no \"x\"", "group": "5f0c", "key": "a/b", "limit": 10, "since": "2026-05-01T12:00:00Z"}`:   `key a/b, error contains "no \"x\"", group 5f0c, since 2026-05-01T12:00:00Z, at most 10`,
		`"by hand"`:                     `"by hand"`,
		`{"ticket": 7}`:                 `{"ticket": 7}`,
		`{"limit": "many", "topic": 7}`: `{"limit": "many", "topic": 7}`,
	} {
		pgtest.Execute(t, pool, "INSERT INTO outbox.audit (who, act, scope) VALUES ('ann', 'replay', $1)", scope)
		p, err := a.Audit(t.Context(), admin.AuditFilter{}, admin.Page{Limit: 1})
		require.NoError(t, err)
		require.Equal(t, want, p.Entries[0].Scope)
	}
}
