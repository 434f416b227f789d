package dashboard_test

import (
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestMain(m *testing.M) { runtimetest.Main(m) }

// site is a page that a test looks at.
type site struct {
	t    testing.TB
	page *dashboard.Page
	url  string
}

// open serves the page. Whoever asks is "tester", unless cfg says otherwise.
func open(t testing.TB, cfg dashboard.Config) *site {
	t.Helper()
	if cfg.Authorize == nil {
		cfg.Authorize = func(*http.Request) (string, error) { return "tester", nil }
	}
	if cfg.Logger == nil {
		cfg.Logger = runtimetest.DiscardLogger()
	}
	page, err := dashboard.New(cfg)
	require.NoError(t, err)
	server := httptest.NewServer(page)
	t.Cleanup(func() { server.Close(); page.Close() })
	return &site{t, page, server.URL + cfg.Prefix}
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   string
	url    string // after redirects
}

func (s *site) send(r *http.Request) answer {
	s.t.Helper()
	resp, err := http.DefaultClient.Do(r)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return answer{resp.StatusCode, resp.Header, string(body), strings.TrimPrefix(resp.Request.URL.String(), s.url)}
}

func (s *site) request(method, path string, form url.Values) *http.Request {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(form.Encode()))
	require.NoError(s.t, err)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return r
}

func (s *site) get(path string) answer {
	s.t.Helper()
	return s.send(s.request(http.MethodGet, path, nil))
}

// ok returns the source of a page that must be shown.
func (s *site) ok(path string) string {
	s.t.Helper()
	a := s.get(path)
	require.Equal(s.t, http.StatusOK, a.status, "%s: %s", path, a.body)
	return a.body
}

// link returns the address of the link with a text, which a page must have once.
func (s *site) link(path, text string) string {
	s.t.Helper()
	found := regexp.MustCompile(`<a [^>]*href="([^"]*)"[^>]*>`+regexp.QuoteMeta(text)+`</a>`).FindAllStringSubmatch(s.ok(path), -1)
	require.Len(s.t, found, 1, "links %q on %s", text, path)
	return strings.TrimPrefix(html.UnescapeString(found[0][1]), strings.TrimPrefix(s.url, "http://"+strings.SplitN(strings.TrimPrefix(s.url, "http://"), "/", 2)[0]))
}

var (
	formPattern   = regexp.MustCompile(`(?s)<form class="act" method="post" action="([^"]*)">(.*?)</form>`)
	hiddenPattern = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)
)

// form returns what the confirmation of an act would send.
func (s *site) form(path string) url.Values {
	s.t.Helper()
	return s.formOf(s.ok(path))
}

// formOf returns the hidden fields of the last form of a page that sends something.
func (s *site) formOf(source string) url.Values {
	s.t.Helper()
	all := formPattern.FindAllStringSubmatch(source, -1)
	require.NotEmpty(s.t, all, "no form in %s", source)
	values := url.Values{}
	for _, in := range hiddenPattern.FindAllStringSubmatch(all[len(all)-1][2], -1) {
		values.Set(in[1], html.UnescapeString(in[2]))
	}
	return values
}

// confirm sends the confirmation of an act that a page asks for, with what somebody types, and follows the redirect.
func (s *site) confirm(path string, typed ...string) answer {
	s.t.Helper()
	values := s.form(path)
	for i := 0; i+1 < len(typed); i += 2 {
		values.Set(typed[i], typed[i+1])
	}
	action, _, _ := strings.Cut(path, "?")
	return s.send(s.request(http.MethodPost, action, values))
}

// said returns what the page says that an act has done.
func said(t testing.TB, a answer) string {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, a.body)
	found := regexp.MustCompile(`<p class="done" role="status">(.*?)</p>`).FindStringSubmatch(a.body)
	require.NotNil(t, found, a.body)
	return html.UnescapeString(found[1])
}

func audits(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return pgtest.Value[string](t, pool, "SELECT coalesce(string_agg(concat_ws(' ', who, act, why, events), '; ' ORDER BY no), '') FROM outbox.audit")
}

// deaf attaches the listener "ears", which has failed once at "b1", and has read "a1".
func deaf(t testing.TB, pool *pgxpool.Pool, retry outbox.Retry) *listener.Listener {
	t.Helper()
	h := runtimetest.NewNotes()
	h.Fail = runtimetest.FailFor("b")
	l := runtimetest.ListenTo(t, pool, listener.Spec{Retry: retry}, listener.Config{}, h)
	runtimetest.PutAll(t, pool, "a1", "b1", "a2")
	runtimetest.DrainAll(t, l)
	return l
}

// everyPage has the path of each page that shows what is in the database of busy.
func everyPage(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	pages := []string{"/", "/events", "/events?status=dead", "/dead", "/listeners", "/listeners/ears", "/limits", "/limits?topic=" + url.QueryEscape(hostile+"/"+hostile), "/doctor", "/audit", "/nothing",
		"/life?entity=" + url.QueryEscape(hostile+"/"+hostile), "/life?correlation=" + url.QueryEscape(hostile), "/search?q=" + url.QueryEscape(hostile),
		"/consumers", "/consumers/" + url.PathEscape(hostile), "/consumers/" + url.PathEscape(hostile) + "?error=x&topic=" + url.QueryEscape(hostile), "/consumers/none"}
	for _, no := range pgtest.Value[[]string](t, pool, "SELECT array_agg(no::text) FROM outbox.inbox_messages") {
		pages = append(pages, "/consumers/"+url.PathEscape(hostile)+"/"+no)
	}
	for _, id := range pgtest.Value[[]string](t, pool, "SELECT array_agg(id::text) FROM (SELECT id FROM outbox.events UNION SELECT id FROM outbox.log) AS e") {
		pages = append(pages, "/events/"+id)
	}
	return pages
}

// hostile is text that a page must not take for its own.
const hostile = `<script src="/x.js"></script>"><img src=x onerror='alert(1)'>&{{.}}` + "\u202eevil\n<b>"

// busy is a database in which all that somebody outside can write is hostile.
func busy(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Database(t)
	deaf(t, pool, outbox.Retry{MaxAttempts: 1, BaseDelay: time.Hour, MaxDelay: time.Hour})
	pgtest.Execute(t, pool, "UPDATE outbox.dead_letters SET error = $1", hostile)
	pgtest.Execute(t, pool, "UPDATE outbox.log SET headers = jsonb_build_object($1::text, $1::text), partition_key = $1", hostile)
	pgtest.Execute(t, pool, `WITH e AS (
			INSERT INTO outbox.events (namespace, topic, payload, dedupe_key, partition_key, headers)
			SELECT $1::text || n, $1, jsonb_build_object($1::text, $1::text, 'secret', 'swordfish'), $1::text || n, $1, jsonb_build_object($1::text, $1::text)
			FROM generate_series(1, 2) AS n RETURNING id, namespace, topic, version, payload, dedupe_key, created_at)
		INSERT INTO outbox.dead_letters (id, namespace, topic, version, payload, dedupe_key, created_at, attempts, max_attempts, claim_no, lane, error, failures)
		SELECT id, namespace, topic, version, payload, dedupe_key, created_at, 1, 25, 1, 3, $1,
			jsonb_build_array(jsonb_build_object('attempt', 1, 'at', now(), 'worker', gen_random_uuid(), 'error', $1::text)) FROM e`, hostile)
	pgtest.Execute(t, pool, `UPDATE outbox.events SET entity_type = $1, entity_id = $1, headers = headers || jsonb_build_object('causation_id', $1::text, 'correlation_id', $1::text)`, hostile)
	pgtest.Execute(t, pool, "INSERT INTO outbox.audit (who, act, why, scope, events) VALUES ($1, $1, $1, jsonb_build_object('namespace', $1::text), 1)", hostile)
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (namespace, who, why) VALUES ($1::text || 1, $1, $1)", hostile)
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, resting)
		VALUES (gen_random_uuid(), 'dispatcher', $1, $1, 1, jsonb_build_object($1 || '1/' || $1, jsonb_build_object('version', 1)), jsonb_build_object($1 || '1/' || $1, $1))`, hostile)
	pgtest.Execute(t, pool, `INSERT INTO outbox.limits (namespace, topic, per, counted_as, nth, tag, part, concurrency, set_concurrency, set_until, set_at, set_by)
		VALUES ($1, $1, $1, $1, 1, 'x', 1, 1, 2, 'infinity', now(), $1)`, hostile)
	pgtest.Execute(t, pool, `INSERT INTO outbox.limit_usage (namespace, topic, per, key, starts_at, starts) VALUES ($1, $1, $1, $1, ARRAY[now()], ARRAY[1])`, hostile)
	pgtest.Execute(t, pool, "UPDATE outbox.limits SET rate = 1, period = '1 h'")
	putKept(t, pool, hostile, "dead", 2, hostile)
	putKept(t, pool, hostile, "parked", 1, hostile)
	return pool
}
