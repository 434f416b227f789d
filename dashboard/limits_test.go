package dashboard_test

import (
	"context"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

// limited runs the topic jobs/limited until the test ends. Two events of the key "full" run and eight wait, and one of "free"
// runs. Each event that begins sends its key.
func limited(t testing.TB, pool *pgxpool.Pool) <-chan string {
	t.Helper()
	topic := runtimetest.LimitedJobs("limited", outbox.Limit{Concurrency: 20},
		outbox.Limit{Per: "{secret}", Concurrency: 2, Rate: outbox.Rate{Events: 50, Period: time.Hour}})
	var jobs []runtimetest.Job
	for i := range 11 {
		jobs = append(jobs, runtimetest.Job{TenantID: uuid.UUID{1}, N: int64(i), Secret: []string{"full", "free"}[i/10]})
	}
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	begun, end := make(chan string, len(jobs)), make(chan struct{})
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		begun <- d.Payload.Secret
		<-end
		return nil
	})))
	t.Cleanup(func() {
		close(end)
		require.NoError(t, stop())
	})
	for range 3 {
		pgtest.Receive(t, begun, "a job begins")
	}
	return begun
}

// rows returns the texts of the cells of a table, row by row.
func rows(page, label string) (list []string) {
	_, table, _ := strings.Cut(page, `aria-label="`+label+`"`)
	table, _, _ = strings.Cut(table, "</table>")
	_, table, _ = strings.Cut(table, "<tbody>")
	for _, row := range strings.Split(table, "</tr>") {
		var cells []string
		for _, cell := range regexp.MustCompile(`(?s)<t[hd][^>]*>(.*?)</t[hd]>`).FindAllStringSubmatch(row, -1) {
			text := regexp.MustCompile(`(?s)<svg.*?</svg>|<[^>]*>`).ReplaceAllString(cell[1], "")
			cells = append(cells, strings.TrimSpace(html.UnescapeString(text)))
		}
		if cells != nil {
			list = append(list, strings.Join(cells, " | "))
		}
	}
	return list
}

// TestLimitsShowWhatIsUsed: the page lists the limits and the keys that are at them, and with a topic all keys in use. The
// overview and the topic lead there.
func TestLimitsShowWhatIsUsed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	limited(t, pool)
	s := open(t, dashboard.Config{Pool: pool})
	s.ok("/")
	require.Equal(t, "/limits", s.link("/", "Events of 1 key wait at its limit"))
	require.Contains(t, s.ok("/"), `title="8 events wait at concurrency 2, rate 50/1h per {secret}"`)

	page := s.ok("/limits")
	limits := rows(page, "Limits")
	require.Len(t, limits, 2)
	require.Regexp(t, `^jobs/limited \| \{secret\} \| concurrency 2, rate 50/1h \|  \| 2 \| 1 \| 8 \| .* \| Change…$`, limits[0])
	require.Regexp(t, `^jobs/limited \| the topic \| concurrency 20 \|  \| 1 \| 0 \| 0 \| .* \| Change…$`, limits[1])
	keys := rows(page, "Keys")
	require.Len(t, keys, 1)
	require.Regexp(t, `^full \| jobs/limited \| \{secret\} \| 2 of 2 \| 2 of 50/1h \| when one ends \| 8 \| .* (s|ms) ago$|now$`, keys[0])

	one := s.link("/topics/jobs/limited", "keys in use")
	require.Equal(t, "/limits?topic=jobs%2flimited", one)
	require.Equal(t, limits, rows(s.ok("/topics/jobs/limited"), "Limits"))
	keys = rows(s.ok(one), "Keys")
	require.Len(t, keys, 3)
	require.Regexp(t, `^full \| `, keys[0])
	require.Contains(t, keys[1:], "free | jobs/limited | {secret} | 1 of 2 | 1 of 50/1h | now | 0 | –")
	require.Contains(t, s.ok("/limits?topic=jobs/other"), "No limit matches")
	require.Equal(t, http.StatusBadRequest, s.get("/limits?since=yesterday").status)

	readOnly := open(t, dashboard.Config{Pool: pool, ReadOnly: true})
	require.NotContains(t, readOnly.ok("/limits"), "Change…")
	require.NotContains(t, readOnly.ok("/topics/jobs/limited"), "Change…")
}

// TestLimitThatTheRateHoldsBack: the page says when the next event may start.
func TestLimitThatTheRateHoldsBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	topic := runtimetest.LimitedJobs("rated", outbox.Limit{Rate: outbox.Rate{Events: 1, Period: time.Hour}})
	runtimetest.EnqueueJobs(t, pool, topic, runtimetest.NumberedJobs(3)...)
	report, err := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)).Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, report.Delivered)
	keys := rows(open(t, dashboard.Config{Pool: pool}).ok("/limits"), "Keys")
	require.Len(t, keys, 1)
	require.Regexp(t, `^all of the topic \| jobs/rated \| the topic \| 0 \| 1 of 1/1h \| in (59|1 h|60|61).* \| 2 \| `, keys[0])
}

// TestLimitsGoFromClickToRow: somebody changes a limit after having seen what it affects, running processes follow, and
// somebody resets it. Both are audited.
func TestLimitsGoFromClickToRow(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	begun := limited(t, pool)
	s := open(t, dashboard.Config{Pool: pool})
	change := "/acts/limit?topic=jobs/limited&per=" + url.QueryEscape("{secret}")
	require.Contains(t, s.ok("/limits"), html.EscapeString("/acts/limit?topic=jobs/limited&per=%7bsecret%7d"))
	asks := s.ok(change)
	require.Contains(t, asks, "jobs/limited per {secret} allows concurrency 2, rate 50/1h now. What is it to allow?")
	require.NotContains(t, asks, `method="post"`)
	require.NotContains(t, asks, " required")

	lower := s.ok(change + "&concurrency=1")
	require.Contains(t, lower, "Change jobs/limited per {secret}: from concurrency 2, rate 50/1h to concurrency 1, rate 50/1h. It affects 2 keys and 8 events that wait.")
	require.Contains(t, lower, "Of 1 key more is running than it will allow. Nothing is cancelled")
	require.NotContains(t, s.ok(change+"&concurrency=5"), "Nothing is cancelled")

	require.Equal(t, "Changed. Running processes follow with their next claim.",
		said(t, s.confirm(change+"&concurrency=5&rate="+url.QueryEscape("60/1h"), "until", "2h", "why", "the provider has more room")))
	for range 3 {
		require.Equal(t, "full", pgtest.Receive(t, begun, "more run at once"))
	}
	require.InDelta(t, 7200, pgtest.Value[float64](t, pool, "SELECT extract(epoch FROM set_until - now())::float8 FROM outbox.limits WHERE per = '{secret}'"), 60)
	var limits []string
	pgtest.Eventually(t, func() bool {
		limits = rows(s.ok("/limits"), "Limits")
		return strings.Contains(limits[0], "| 2 | 1 | 5 |")
	})
	require.Regexp(t, `^jobs/limited \| \{secret\} \| concurrency 5, rate 60/1h \| set: tester has set concurrency 5, rate 60/1h, until 20.* UTC\. The YAML says concurrency 2, rate 50/1h\. \|`, limits[0])

	reset := strings.Replace(change, "/acts/limit?", "/acts/limit-reset?", 1)
	require.Contains(t, s.ok(reset), "Reset jobs/limited per {secret}: from concurrency 5, rate 60/1h to concurrency 2, rate 50/1h. It affects 2 keys and 5 events that wait.")
	require.Equal(t, "Reset. The limit allows what the YAML says.", said(t, s.confirm(reset, "why", "enough")))
	require.Equal(t, 2, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.limits WHERE set_until IS NULL"))
	require.Contains(t, s.ok(reset), "Nobody has set the limit of jobs/limited per {secret}.")
	require.Equal(t, "tester limit the provider has more room 0; tester limit-reset enough 0", audits(t, pool))
	require.Contains(t, s.ok("/audit"), "jobs/limited, per {secret}, concurrency 5, rate 60/1h, until ")

	whole := "/acts/limit?topic=jobs/limited&per="
	require.Contains(t, s.ok(whole+"&concurrency=1"), "Change jobs/limited: from concurrency 20 to concurrency 1. It affects 5 events that wait.")
	require.Contains(t, s.ok(whole+"&concurrency=1"), " More is running than it will allow. Nothing is cancelled")
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		whole + "&concurrency=none":                        {http.StatusBadRequest, `concurrency: "none" is not a number from 1 on`},
		whole + "&concurrency=0":                           {http.StatusBadRequest, `concurrency: "0" is not a number from 1 on`},
		whole + "&rate=10":                                 {http.StatusBadRequest, `rate: "10" is not a rate`},
		whole + "&rate=" + url.QueryEscape("1/10ms"):       {http.StatusBadRequest, "period 10ms of the rate is not between 1s and 24h0m0s"},
		"/acts/limit?topic=jobs":                           {http.StatusBadRequest, "topic: a namespace and a topic are needed"},
		"/acts/limit?topic=jobs/limited&per=tenant":        {http.StatusNotFound, "unknown limit jobs/limited per tenant: known limits are"},
		"/acts/limit-reset?topic=jobs/limited&per=tenant":  {http.StatusNotFound, "unknown limit jobs/limited per tenant: known limits are"},
		"/acts/limit?topic=jobs/other&per=&concurrency=1":  {http.StatusNotFound, "unknown limit jobs/other"},
		"/acts/limit-reset?topic=jobs/limited&per=%7Bs%7D": {http.StatusNotFound, "unknown limit jobs/limited per {s}"},
	} {
		a := s.get(path)
		require.Equal(t, want.status, a.status, path)
		require.Contains(t, html.UnescapeString(a.body), want.text, path)
	}
	form := url.Values{"topic": {"jobs/limited"}, "concurrency": {"3"}, "until": {"2001-01-01"}}
	require.Equal(t, http.StatusBadRequest, s.send(s.request(http.MethodPost, "/acts/limit", form)).status)
	require.Equal(t, http.StatusBadRequest, s.send(s.request(http.MethodPost, "/acts/limit", url.Values{"topic": {"jobs/limited"}})).status)
}
