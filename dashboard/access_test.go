package dashboard_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

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

	for _, test := range []struct {
		from, to string
		may      bool
	}{
		{"127.0.0.1:1000", "127.0.0.1:80", true},
		{"[::1]:1000", "[::1]:80", true},
		{"192.0.2.1:1000", "127.0.0.1:80", false},
		{"127.0.0.1:1000", "192.0.2.2:80", false},
		{"192.0.2.1:1000", "192.0.2.2:80", false},
		{"127.0.0.1:1000", "", false},
	} {
		r := &http.Request{RemoteAddr: test.from, Host: "localhost", Header: http.Header{}}
		if test.to != "" {
			to := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(test.to))
			r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, to))
		}
		_, err = dashboard.Loopback("")(r)
		if test.may {
			require.NoError(t, err, test)
			continue
		}
		require.EqualError(t, err, "this page is for this machine only; Authorize in its configuration can let others in", test)
	}
}
