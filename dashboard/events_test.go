package dashboard_test

import (
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
)

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
