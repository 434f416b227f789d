package browsertest

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/listener"
)

// refreshed waits until what is shown was replaced once more.
func (tb *tab) refreshed() {
	tb.T.Helper()
	value[bool](tb, `document.getElementById("live").old = true`)
	tb.Until(`document.getElementById("live") && !document.getElementById("live").old`)
}

func TestPageShowsChangesWithoutAReload(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, seedSQL)
	pgtest.Execute(t, pool, "SELECT seed.event('jobs', 'mail', 'pending', '1 min'), seed.event('jobs', 'print', 'dead', '1 min', '{\"errors\": [\"no paper\"]}')")
	url := serve(t, dashboard.Config{Pool: pool})
	tb := open(t, url)
	tb.visit("/")
	value[bool](tb, "window.mine = true")
	due := `document.querySelector('tr:has(a[href="/topics/jobs/mail"]) td:nth-child(3)').innerText`
	tb.Until(due + ` === "1"`)

	// The focus stays on its link, also if rows come before it.
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (namespace, topic, who) VALUES ('jobs', 'mail', 'ada')")
	resume := `a[href="/acts/resume?topic=jobs/mail&listener="]`
	tb.Until(`document.querySelector('` + resume + `')`)
	value[bool](tb, `document.querySelector('`+resume+`').focus(), true`)
	pgtest.Execute(t, pool, "SELECT seed.event('jobs', 'mail', 'pending', '1 min'), seed.event('jobs', 'first', 'pending', '1 min')")
	pgtest.Execute(t, pool, "INSERT INTO outbox.pauses (namespace, topic, who) VALUES ('jobs', 'first', 'ada')")
	tb.Until(due + ` === "2"`)
	tb.untilText("jobs/first")
	tb.Until(`document.querySelectorAll('a[href^="/acts/resume"]').length === 2`)
	require.True(t, value[bool](tb, `document.activeElement.matches('`+resume+`')`))
	require.True(t, value[bool](tb, "window.mine"), "the page was not loaded again")

	// What somebody marks is left alone.
	value[bool](tb, `getSelection().selectAllChildren(document.querySelector("#live h2")), document.getElementById("live").marked = true`)
	pgtest.Execute(t, pool, "SELECT seed.event('jobs', 'mail', 'pending', '1 min')")
	other := open(t, url)
	other.visit("/")
	other.Until(due + ` === "3"`)
	other.refreshed()
	require.True(t, value[bool](tb, `document.getElementById("live").marked`))
	value[bool](tb, `getSelection().removeAllRanges(), true`)
	tb.Until(due + ` === "3"`)

	// The button stops it, and starts it again.
	tb.Click("#updates")
	tb.Until(`document.getElementById("updates").getAttribute("aria-pressed") === "false"`)
	value[bool](tb, `document.getElementById("live").marked = true`)
	other.refreshed()
	other.refreshed()
	require.True(t, value[bool](tb, `document.getElementById("live").marked`))
	tb.Click("#updates")
	tb.Until(`!document.getElementById("live").marked`)
}

// TestClickSurvivesARefresh holds the button of the mouse over a link until the page was refreshed.
func TestClickSurvivesARefresh(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, seedSQL)
	pgtest.Execute(t, pool, "SELECT seed.event('jobs', 'mail', 'pending', '1 min')")
	tb := open(t, serve(t, dashboard.Config{Pool: pool}))
	tb.visit("/")
	tb.refreshed()
	type point struct{ X, Y float64 }
	at := value[point](tb, `(function () { const r = document.querySelector('a[href="/topics/jobs/mail"]').getBoundingClientRect(); return {X: r.x + r.width / 2, Y: r.y + r.height / 2}; })()`)
	tb.Do(chromedp.MouseEvent(chromedp.MousePressed, at.X, at.Y, chromedp.ButtonType("left"), chromedp.ClickCount(1)))
	asked := len(tb.Requests())
	pgtest.Eventually(t, func() bool { return len(tb.Requests()) >= asked+2 }) // so one was answered
	tb.Do(chromedp.MouseEvent(chromedp.MouseReleased, at.X, at.Y, chromedp.ButtonType("left"), chromedp.ClickCount(1)))
	tb.Until(`location.pathname === "/topics/jobs/mail"`)
}

// TestHiddenPageAsksForNothing has another tab in front of the page.
func TestHiddenPageAsksForNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, seedSQL)
	url := serve(t, dashboard.Config{Pool: pool})
	tb := open(t, url)
	tb.visit("/")
	tb.refreshed()
	// Tabs without a screen are never hidden by the browser itself.
	value[bool](tb, `Object.defineProperty(document, "hidden", {configurable: true, get: function () { return true; }}), document.dispatchEvent(new Event("visibilitychange"))`)
	tb.Until(`!document.querySelector("#live.htmx-request")`)
	asked := len(tb.Requests())
	other := open(t, url)
	other.visit("/")
	for range 3 {
		other.refreshed()
	}
	require.Equal(t, asked, len(tb.Requests()))
	pgtest.Execute(t, pool, "SELECT seed.event('jobs', 'mail', 'pending', '1 min')")
	value[bool](tb, `delete document.hidden, document.dispatchEvent(new Event("visibilitychange"))`)
	tb.untilText("jobs/mail")
}

// TestChartsStay over a refresh: a chart that is drawn again flickers, and loses what the pointer shows.
func TestChartsStay(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, seedSQL)
	pgtest.Execute(t, pool, "SELECT seed.event('orders', 'order_placed', 'pending', '1 min')")
	tb := open(t, serve(t, dashboard.Config{Pool: pool, Prometheus: lastHour(t)}))
	tb.visit("/topics/orders/order_placed")
	tb.Until(`document.querySelectorAll("figure.chart canvas").length === 5`)
	value[bool](tb, `document.querySelector("figure.chart canvas").mine = true`)
	tb.refreshed()
	require.True(t, value[bool](tb, `document.querySelector("figure.chart canvas").mine`))
	require.Equal(t, 5, value[int](tb, `document.querySelectorAll("figure.chart canvas").length`))
	type point struct{ X, Y float64 }
	middle := value[point](tb, `(function () { const r = document.querySelector("figure.chart .u-over").getBoundingClientRect(); return {X: r.x + r.width / 2, Y: r.y + r.height / 2}; })()`)
	tb.Do(chromedp.MouseEvent(chromedp.MouseMoved, middle.X, middle.Y))
	tb.Until(`/^[\d.,]+ at \d\d:\d\d:\d\d UTC$/.test(document.querySelector("figure.chart small").innerText)`)
	tb.refreshed()
	require.Regexp(t, `^[\d.,]+ at \d\d:\d\d:\d\d UTC$`, tb.text("figure.chart small"))
}

func TestKeyboard(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	runtimetest.DrainAll(t, runtimetest.ListenTo(t, pool, listener.Spec{}, listener.Config{}, runtimetest.NewNotes()))
	tb := open(t, serve(t, dashboard.Config{Pool: pool}))
	tb.visit("/")
	at := func() string {
		return value[string](tb, `document.activeElement.innerText.trim() || document.activeElement.getAttribute("aria-label") || document.activeElement.name || ""`)
	}
	var seen []string
	next := func(want string) {
		t.Helper()
		for range 40 {
			tb.Press(tabKey)
			seen = append(seen, at())
			if seen[len(seen)-1] == want {
				require.True(t, value[bool](tb, `document.activeElement.matches(":focus-visible") && document.activeElement.getBoundingClientRect().right > 0`), "the focus is visible")
				return
			}
		}
		require.FailNow(t, "not reached", "%s: %q", want, seen)
	}
	next("Skip to the content")
	tb.Press(enterKey)
	tb.Until(`document.activeElement.id === "main"`)
	next("Live updates")

	tb.visit("/")
	seen = nil
	next("Listeners")
	require.Equal(t, []string{"Skip to the content", "outboxgen", "Overview", "Events", "Dead letters", "Listeners"}, seen)
	value[bool](tb, "window.seen = true")
	tb.Press(enterKey)
	tb.Until(`!window.seen && document.readyState === "complete"`)
	next("ears")
	tb.Press(enterKey)
	tb.Until(`location.pathname === "/listeners/ears" && document.readyState === "complete"`)
	next("Pause…")
	tb.Press(enterKey)
	tb.Until(`location.pathname === "/acts/pause" && document.readyState === "complete"`)
	next("why")
	tb.Press("lunch")
	next("Pause listener ears")
	tb.Press(enterKey)
	tb.untilText("Paused. Running processes honour it within one poll interval.")
	require.Equal(t, "lunch", pgtest.Value[string](t, pool, "SELECT why FROM outbox.pauses WHERE listener = 'ears'"))
}

// TestTwoViewers act on the same thing.
func TestTwoViewers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	pgtest.Execute(t, pool, seedSQL)
	id := pgtest.Value[string](t, pool, `SELECT seed.event('jobs', 'print', 'dead', '1 h', '{"errors": ["no paper"]}')::text`)
	url := serve(t, dashboard.Config{Pool: pool})
	first, second := open(t, url), open(t, url)
	for _, tb := range []*tab{first, second} {
		tb.visit("/topics/jobs/print")
		tb.link("Pause…")
	}
	first.act("Pause…")
	second.untilText("jobs/print has been paused by ada")
	second.link("Resume…")

	for _, tb := range []*tab{first, second} {
		tb.visit("/events/" + id)
		tb.follow(tb.link("Replay…"))
	}
	first.follow(`form[method="post"].act button`)
	require.Equal(t, "1 replayed.", first.text(".done"))
	second.Allow("the server responded with a status of 409")
	second.follow(`form[method="post"].act button`)
	require.Contains(t, value[string](second, "document.body.innerText"), "0 replayed.")
	require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.audit WHERE act = 'replay' AND events > 0"))
}

// TestPagesWithoutScript are complete and readable.
func TestPagesWithoutScript(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tb := open(t, serve(t, dashboard.Config{Pool: w.pool, Mask: dashboard.Unmasked, AuthorizeForget: anybody, AuthorizeEnqueue: anyTopic, Enqueue: topicForms(t)}))
	tb.NoScript()
	for _, path := range w.pages {
		tb.visit(path)
		tb.Until(`document.readyState === "complete" && document.querySelector("h1").innerText`)
		require.False(t, value[bool](tb, `document.querySelector("#updates") !== null && !document.querySelector("#updates").hidden`), "a button that does nothing")
		require.NotEmpty(t, tb.text("#live"), path)
	}
	tb.visit("/topics/jobs/due")
	require.Positive(t, value[int](tb, fmt.Sprintf(`document.querySelectorAll(%q).length`, "figure.chart figcaption")))
}
