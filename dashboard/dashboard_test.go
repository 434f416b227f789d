package dashboard_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	minichat "github.com/outboxgen/outboxgen/generator/testdata/minichat/want"
	people "github.com/outboxgen/outboxgen/generator/testdata/sensitive/want"
	"github.com/outboxgen/outboxgen/internal/pgtest"
	"github.com/outboxgen/outboxgen/internal/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestNewRefusesConfigurations(t *testing.T) {
	t.Parallel()
	pool := runtimetest.Unconnected(t)
	for want, cfg := range map[string]dashboard.Config{
		"new dashboard: config: Pool is nil":                                                                                                                   {},
		`new dashboard: config: Prefix "outbox" is not a valid path: use one like /admin/outbox`:                                                               {Pool: pool, Prefix: "outbox"},
		`new dashboard: config: Prefix "/a b" is not a valid path: use one like /admin/outbox`:                                                                 {Pool: pool, Prefix: "/a b"},
		`new dashboard: config: Prefix "/{x}" is not a valid path: use one like /admin/outbox`:                                                                 {Pool: pool, Prefix: "/{x}"},
		"new dashboard: config: TraceURL is not a valid http or https URL: use one like https://traces.example.com/trace/{trace_id}":                           {Pool: pool, TraceURL: "javascript:alert({trace_id})"},
		"new dashboard: config: TraceURL has no {trace_id}":                                                                                                    {Pool: pool, TraceURL: "https://traces.example.com/"},
		"new dashboard: config: Prometheus is not a valid http or https URL: use one like http://prometheus:9090":                                              {Pool: pool, Prometheus: "prometheus"},
		`new dashboard: new admin: schema "no such" is not a valid name: use lower-case letters, digits and _, beginning with a letter or _, at most 48 bytes`: {Pool: pool, Schema: "no such"},
	} {
		_, err := dashboard.New(cfg)
		require.Error(t, err)
		if cfg.Schema == "" {
			require.EqualError(t, err, want)
		} else {
			require.ErrorContains(t, err, "new dashboard: new admin: ")
		}
		_, err = dashboard.Handler(cfg)
		require.Error(t, err)
	}
}

// everyPage has the path of each page that shows what is in the database of busy.
func everyPage(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	pages := []string{"/", "/events", "/events?status=dead", "/dead", "/listeners", "/listeners/ears", "/doctor", "/audit", "/nothing",
		"/consumers", "/consumers/" + url.PathEscape(hostile), "/consumers/" + url.PathEscape(hostile) + "?error=x&topic=" + url.QueryEscape(hostile), "/consumers/none"}
	for _, no := range pgtest.Value[[]string](t, pool, "SELECT array_agg(no::text) FROM outbox.inbox_messages WHERE status = 'dead'") {
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
	pgtest.Execute(t, pool, "INSERT INTO outbox.audit (who, act, why, scope, events) VALUES ($1, $1, $1, jsonb_build_object('namespace', $1::text), 1)", hostile)
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (namespace, who, why) VALUES ($1::text || 1, $1, $1)", hostile)
	pgtest.Execute(t, pool, `INSERT INTO outbox.processes (worker_id, kind, name, host, pid, topics, resting)
		VALUES (gen_random_uuid(), 'dispatcher', $1, $1, 1, jsonb_build_object($1 || '1/' || $1, jsonb_build_object('version', 1)), jsonb_build_object($1 || '1/' || $1, $1))`, hostile)
	putKept(t, pool, hostile, "dead", 2, hostile)
	putKept(t, pool, hostile, "parked", 1, hostile)
	return pool
}

func TestEverythingIsShownAsText(t *testing.T) {
	t.Parallel()
	pool := busy(t)
	s := open(t, dashboard.Config{Pool: pool, Mask: dashboard.Unmasked, Title: hostile, TraceURL: "https://example.com/{trace_id}"})
	own := regexp.MustCompile(`<script src="/assets/[\w.-]+" defer></script>`)
	quoted := regexp.MustCompile(`"[^"]*"`)
	attribute := regexp.MustCompile(`<[a-z][^>]*\s(?:on\w+|style|srcdoc|hx-on[\w:-]*)\s*=`)
	shown := 0
	name := url.PathEscape(hostile+"1") + "/" + url.PathEscape(hostile)
	pages := append(everyPage(t, pool), "/topics/"+name, "/acts/replay?topic="+url.QueryEscape(hostile+"1/"+hostile), "/acts/nothing",
		"/events?error="+url.QueryEscape(hostile)+"&key="+url.QueryEscape(hostile), "/events?tenant="+url.QueryEscape(hostile), "/audit?who="+url.QueryEscape(hostile),
		"/?did="+url.QueryEscape(hostile), "/?did=replay&refused=1&because="+url.QueryEscape(hostile)+"&n="+url.QueryEscape(hostile), "/acts/pause?listener="+url.QueryEscape(hostile),
		"/acts/replay?consumer="+url.QueryEscape(hostile), "/acts/discard?consumer="+url.QueryEscape(hostile)+"&error="+url.QueryEscape(hostile))
	for _, path := range pages {
		a := s.get(path)
		require.Equal(t, 3, len(own.FindAllString(a.body, -1)), path)
		rest := own.ReplaceAllString(a.body, "")
		for _, part := range []string{"<script", "<img", "<b>", "onerror='"} {
			require.NotContains(t, rest, part, path)
		}
		require.Empty(t, attribute.FindAllString(quoted.ReplaceAllString(a.body, `""`), -1), path)
		require.NotContains(t, a.body, "ZgotmplZ", path)
		require.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			a.header.Get("Content-Security-Policy"), path)
		require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"), path)
		require.Equal(t, "no-store", a.header.Get("Cache-Control"), path)
		shown += strings.Count(html.UnescapeString(rest), `<img src=x onerror=`)
	}
	require.Greater(t, shown, 30, "the test must meet its own values")
}

func TestReadOnlyHasNoWayToAct(t *testing.T) {
	t.Parallel()
	pool := busy(t)
	s := open(t, dashboard.Config{Pool: pool, ReadOnly: true})
	for _, path := range everyPage(t, pool) {
		body := s.get(path).body
		require.NotContains(t, body, "/acts/", path)
		require.Equal(t, path == "/doctor", strings.Contains(body, `method="post"`), path)
	}
	for _, act := range []string{"replay", "discard", "pause", "resume", "skip", "rewind", "detach"} {
		require.Equal(t, http.StatusNotFound, s.get("/acts/"+act+"?listener=ears").status, act)
		a := s.send(s.request(http.MethodPost, "/acts/"+act, url.Values{"listener": {"ears"}, "count": {"9"}, "why": {"x"}, "to": {"earliest"}}))
		require.Equal(t, http.StatusMethodNotAllowed, a.status, act)
		require.Contains(t, a.body, "This page is read-only. Nothing was changed.")
	}
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.audit"), "that of the fixture")
	require.Equal(t, 3, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.dead_letters"))
}

func TestSensitiveFieldsAreNotInTheSource(t *testing.T) {
	t.Parallel()
	pool := busy(t)
	masked := func(_ string, _ int, payload json.RawMessage) (json.RawMessage, bool) {
		return json.RawMessage(strings.ReplaceAll(string(payload), "swordfish", "[masked]")), true
	}
	unknown := func(string, int, json.RawMessage) (json.RawMessage, bool) { return nil, false }
	for name, test := range map[string]struct {
		mask func(string, int, json.RawMessage) (json.RawMessage, bool)
		want string
	}{
		"masked":  {masked, "[masked]"},
		"unknown": {unknown, "Not shown: it is not known which fields of this topic are sensitive."},
		"no mask": {nil, "Not shown: the page does not know which fields are sensitive."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, dashboard.Config{Pool: pool, Mask: test.mask})
			met := false
			for _, path := range everyPage(t, pool) {
				body := s.get(path).body
				require.NotContains(t, body, "swordfish", path)
				met = met || strings.Contains(body, test.want)
			}
			require.True(t, met)
		})
	}
}

func TestGeneratedCodeMasksPayloads(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	nickname := "<Ann>"
	person := people.Joined{PersonID: uuid.New(), Email: "swordfish@example.com", Pin: 471147, Tokens: []string{"swordfish"}, Nickname: &nickname, Home: people.Address{City: "Berlin"}}
	var joined, finished, other uuid.UUID
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		r, err := people.EnqueueJoined(t.Context(), tx, person)
		if err != nil {
			return err
		}
		joined = r.ID
		m := outbox.Message{Namespace: "mini_chat", Topic: "turn_finalized", Payload: json.RawMessage(`{"model": "small", "iban": "swordfish"}`)}
		if r, err = outbox.Enqueue(t.Context(), tx, "", m); err != nil {
			return err
		}
		finished = r.ID
		m = outbox.Message{Namespace: "people", Topic: "unknown", Payload: json.RawMessage(`"swordfish"`)}
		r, err = outbox.Enqueue(t.Context(), tx, "", m)
		other = r.ID
		return err
	}))
	s := open(t, dashboard.Config{Pool: pool, Mask: dashboard.Masks(people.MaskPayload, minichat.MaskPayload)})
	for id, want := range map[uuid.UUID][]string{
		joined:   {`"email": "[masked]"`, `"pin": "[masked]"`, `"tokens": "[masked]"`, `"nickname": "<Ann>"`, `"city": "Berlin"`},
		finished: {`"model": "small"`, `"iban": "[masked]"`},
		other:    {"Not shown: it is not known which fields of this topic are sensitive."},
	} {
		source := s.get("/events/" + id.String()).body
		require.NotContains(t, source, "swordfish")
		require.NotContains(t, source, "471147")
		for _, text := range want {
			require.Contains(t, html.UnescapeString(source), text)
		}
	}
}

func TestOtherSitesCannotAct(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	deaf(t, pool, runtimetest.LateRetry)
	s := open(t, dashboard.Config{Pool: pool})
	form := s.form("/acts/pause?listener=ears")
	for name, header := range map[string][2]string{
		"another site":            {"Sec-Fetch-Site", "cross-site"},
		"another host of a site":  {"Sec-Fetch-Site", "same-site"},
		"an old browser's origin": {"Origin", "https://evil.example.com"},
		"no origin":               {"Origin", "null"},
	} {
		for _, path := range []string{"/acts/pause", "/doctor"} {
			r := s.request(http.MethodPost, path, form)
			r.Header.Set(header[0], header[1])
			a := s.send(r)
			require.Equal(t, http.StatusForbidden, a.status, name)
			require.Contains(t, a.body, "the request comes from another site", name)
		}
	}
	require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.pauses"))
	for _, header := range [][2]string{{"Sec-Fetch-Site", "same-origin"}, {"Origin", s.url}} {
		r := s.request(http.MethodPost, "/acts/pause", form)
		r.Header.Set(header[0], header[1])
		require.Equal(t, "Paused. Running processes honour it within one poll interval.", said(t, s.send(r)))
	}
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.pauses"))
	require.Equal(t, http.StatusMethodNotAllowed, s.send(s.request(http.MethodPut, "/acts/pause", form)).status)
	require.Equal(t, http.StatusOK, s.send(s.request(http.MethodGet, "/acts/pause?listener=ears", nil)).status, "to look changes nothing")
}

func TestAuthorizeSaysWho(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	deaf(t, pool, runtimetest.LateRetry)
	s := open(t, dashboard.Config{Pool: pool, Authorize: func(r *http.Request) (string, error) {
		switch who := r.Header.Get("X-User"); who {
		case "":
			return "", &dashboard.Challenge{Realm: "test"}
		case "mallory":
			return "", errors.New("mallory may not look")
		case "nobody":
			return "", nil
		default:
			return who, nil
		}
	}})
	as := func(who, method, path string, form url.Values) answer {
		r := s.request(method, path, form)
		r.Header.Set("X-User", who)
		return s.send(r)
	}
	asset := regexp.MustCompile(`/assets/[\w.-]+\.js`).FindString(as("ann", http.MethodGet, "/", nil).body)
	for _, path := range []string{"/", "/events", asset, "/acts/pause?listener=ears"} {
		a := as("", http.MethodGet, path, nil)
		require.Equal(t, http.StatusUnauthorized, a.status)
		require.Equal(t, `Basic realm="test", charset="UTF-8"`, a.header.Get("WWW-Authenticate"))
		require.Equal(t, http.StatusForbidden, as("mallory", http.MethodGet, path, nil).status)
		require.Equal(t, http.StatusForbidden, as("nobody", http.MethodGet, path, nil).status)
		require.Equal(t, http.StatusOK, as("ann", http.MethodGet, path, nil).status)
	}
	form := url.Values{"listener": {"ears"}, "why": {"lunch"}}
	require.Equal(t, http.StatusForbidden, as("mallory", http.MethodPost, "/acts/pause", form).status)
	require.Empty(t, audits(t, pool))
	as("ann", http.MethodPost, "/acts/pause", form)
	require.Equal(t, "ann pause lunch 0", audits(t, pool))
}

func TestWithoutAuthorizeOnlyThisMachineMayLook(t *testing.T) {
	t.Parallel()
	page, err := dashboard.New(dashboard.Config{Pool: pgtest.Database(t), Logger: runtimetest.DiscardLogger()})
	require.NoError(t, err)
	defer page.Close()
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/", nil))
	require.Equal(t, http.StatusForbidden, w.Code, "it is not known to which address the request came")

	server := httptest.NewServer(page)
	defer server.Close()
	port := server.URL[strings.LastIndex(server.URL, ":"):]
	for _, test := range []struct {
		host   string
		header string
		status int
	}{
		{"127.0.0.1" + port, "", http.StatusOK},
		{"localhost" + port, "", http.StatusOK},
		{"LOCALHOST", "", http.StatusOK},
		{"outbox.localhost", "", http.StatusOK},
		{"[::1]" + port, "", http.StatusOK},
		{"evil.example.com", "", http.StatusForbidden},
		{"127.0.0.1.example.com" + port, "", http.StatusForbidden},
		{"10.0.0.1", "", http.StatusForbidden},
		{"localhost", "X-Forwarded-For", http.StatusForbidden},
		{"localhost", "Forwarded", http.StatusForbidden},
		{"localhost", "Via", http.StatusForbidden},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		require.NoError(t, err)
		r.Host = test.host
		if test.header != "" {
			r.Header.Set(test.header, "127.0.0.1")
		}
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, test.status, resp.StatusCode, test)
	}

	outside := &http.Request{RemoteAddr: "192.0.2.1:1000", Host: "localhost", Header: http.Header{}}
	_, err = dashboard.Loopback("")(outside)
	require.EqualError(t, err, "this page is for this machine only; Authorize in its configuration can let others in")
}

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

func TestViewersShareTheQueries(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	traced, statements := runtimetest.NewGate(t, pool, "")
	s := open(t, dashboard.Config{Pool: traced})
	s.ok("/")
	before, start := statements.Passed.Load(), time.Now()
	s.ok("/")
	var viewers sync.WaitGroup
	for range 40 {
		viewers.Go(func() {
			for range 5 {
				resp, err := http.Get(s.url + "/")
				if pgtest.Check(t, err) {
					_ = resp.Body.Close()
				}
			}
		})
	}
	viewers.Wait()
	one := before // one reading, and what opening the first connections has sent
	readings := 2 + int64(time.Since(start)/(2*time.Second))
	require.LessOrEqual(t, statements.Passed.Load()-before, readings*one, "200 views in %s", time.Since(start))
}

func TestAssetsAreWhatTheyWere(t *testing.T) {
	t.Parallel()
	sums, err := os.ReadFile("assets/SHA256SUMS")
	require.NoError(t, err)
	listed := make(map[string]bool)
	for line := range strings.Lines(string(sums)) {
		fields := strings.Fields(line)
		content, err := os.ReadFile(filepath.Join("assets", fields[1]))
		require.NoError(t, err)
		sum := sha256.Sum256(content)
		require.Equal(t, fields[0], hex.EncodeToString(sum[:]), fields[1])
		listed[fields[1]] = true
	}
	files, err := os.ReadDir("assets")
	require.NoError(t, err)
	own := map[string]bool{"SHA256SUMS": true, "dashboard.js": true, "dashboard.css": true, "icon.svg": true}
	for _, f := range files {
		require.True(t, own[f.Name()] || listed[f.Name()], "%s needs a checksum", f.Name())
	}
	for name, part := range map[string]string{"htmx.LICENSE": "Zero-Clause BSD", "uPlot.LICENSE": "The MIT License (MIT)"} {
		text, err := os.ReadFile(filepath.Join("assets", name))
		require.NoError(t, err)
		require.Contains(t, string(text), part)
	}
}

func TestPrefixIsKept(t *testing.T) {
	t.Parallel()
	pool := busy(t)
	s := open(t, dashboard.Config{Pool: pool, Prefix: "/admin/outbox/"})
	s.url = strings.TrimSuffix(s.url, "/")
	link := regexp.MustCompile(`(?:href|action|src|hx-get)="(/[^"]*)"`)
	for _, path := range everyPage(t, pool) {
		found := link.FindAllStringSubmatch(s.get(path).body, -1)
		require.NotEmpty(t, found)
		for _, l := range found {
			require.True(t, strings.HasPrefix(l[1], "/admin/outbox/"), "%s on %s", l[1], path)
		}
	}
	require.Equal(t, http.StatusOK, s.get("").status, "it is led to the slash")
	require.Equal(t, "/", s.get("").url)
}

func TestPageTellsThatTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	pool := runtimetest.Unconnected(t)
	s := open(t, dashboard.Config{Pool: pool})
	for _, path := range []string{"/", "/events", "/dead", "/audit"} {
		a := s.get(path)
		require.Equal(t, http.StatusServiceUnavailable, a.status, path)
		require.Contains(t, a.body, "The page works again when the database does.", path)
	}
	s.page.Close()
	require.Equal(t, http.StatusServiceUnavailable, s.get("/").status)
}

func TestLargePayloadsAreNotShown(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.PutAll(t, pool, "a1")
	id := runtimetest.IDOf(t, pool, "a1").String()
	pgtest.Execute(t, pool, `UPDATE outbox.log SET payload = jsonb_build_object('text', repeat('x', 1 << 20))`)
	s := open(t, dashboard.Config{Pool: pool, Mask: dashboard.Unmasked})
	body := s.ok("/events/" + id)
	require.Contains(t, body, "Not shown: it has 1,048,5")
	require.Less(t, len(body), 50_000)
}

func TestEventLinksToItsTrace(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	deaf(t, pool, runtimetest.LateRetry)
	trace := "4bf92f3577b34da6a3ce929d0e0e4736"
	pgtest.Execute(t, pool, `UPDATE outbox.log SET headers = jsonb_build_object('traceparent', '00-' || $1::text || '-00f067aa0ba902b7-01')`, trace)
	s := open(t, dashboard.Config{Pool: pool, TraceURL: "https://traces.example.com/{trace_id}?span={span_id}"})
	page := "/events/" + runtimetest.IDOf(t, pool, "a1").String()
	require.Equal(t, "https://traces.example.com/"+trace+"?span=00f067aa0ba902b7", s.link(page, "Trace"))
	pgtest.Execute(t, pool, `UPDATE outbox.log SET headers = '{"traceparent": "00-javascript:alert(1)-x-01"}'`)
	require.NotContains(t, s.ok(page), ">Trace<")
}

func TestChartsBeginWithPrometheus(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	deaf(t, pool, runtimetest.LateRetry)
	var mu sync.Mutex
	var queries []string
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		queries = append(queries, r.FormValue("query"))
		mu.Unlock()
		if !strings.Contains(r.FormValue("query"), "unread") {
			fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
			return
		}
		at := time.Now().Add(-30 * time.Minute).Unix()
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"listener":"ears"},"values":[[%d,"NaN"],[%d,"4711"],[%d,"17"]]}]}}`, at-1, at, at+10)
	}))
	defer upstream.Close()
	s := open(t, dashboard.Config{Pool: pool, Prometheus: upstream.URL + "/"})
	pgtest.Eventually(t, func() bool { return strings.Contains(s.ok("/listeners/ears"), "at most 4,711") })
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, queries, 8)
}

func TestEventsArePaged(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.EnqueueN(t, pool, 120)
	s := open(t, dashboard.Config{Pool: pool})
	id := regexp.MustCompile(`<td class="id"><a href="/events/([^"]+)"`)
	seen := make(map[string]bool)
	path, pages := "/events?status=pending", 0
	for ; path != ""; pages++ {
		body := s.ok(path)
		for _, m := range id.FindAllStringSubmatch(body, -1) {
			require.False(t, seen[m[1]])
			seen[m[1]] = true
		}
		require.Equal(t, pages > 0, strings.Contains(body, ">First page<"))
		path = ""
		if next := regexp.MustCompile(`rel="next" href="([^"]*)"`).FindStringSubmatch(body); next != nil {
			path = html.UnescapeString(next[1])
		}
	}
	require.Equal(t, 3, pages)
	require.Len(t, seen, 120)
	require.Equal(t, http.StatusBadRequest, s.get("/events?after=nonsense").status)
	lost := s.get("/events?status=lost")
	require.Equal(t, http.StatusBadRequest, lost.status)
	require.Contains(t, html.UnescapeString(lost.body), `>status "lost" is not a valid status: use pending,`)
}
