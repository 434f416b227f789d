package dashboard_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
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
		var a answer
		pgtest.Eventually(t, func() bool { // the dead letters are being counted, for a moment
			a = s.get(path)
			return a.status == http.StatusServiceUnavailable
		})
		require.Contains(t, a.body, "The page works again when the database does.", path)
	}
	s.page.Close()
	require.Equal(t, http.StatusServiceUnavailable, s.get("/").status)
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
