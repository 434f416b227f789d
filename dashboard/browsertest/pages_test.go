package browsertest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/browser"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// accessible requires that axe finds nothing wrong in the page as it is.
func (tb *tab) accessible(rules string) {
	tb.T.Helper()
	if browser.Axe() == "" {
		return // TestPages says so
	}
	require.Empty(tb.T, tb.Violations(rules), "findings of axe")
}

// narrow requires that the page itself does not scroll sideways.
func (tb *tab) narrow() {
	tb.T.Helper()
	require.Empty(tb.T, value[string](tb, `(function () {
		const width = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth <= width) return "";
		return "the page is " + document.documentElement.scrollWidth + " wide in " + width + ": " + Array.from(document.querySelectorAll("body *"))
			.filter(function (e) { return e.getBoundingClientRect().right > width + 1 && !e.closest(".scroll > *"); }).slice(0, 5)
			.map(function (e) { return e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 40); }).join("; ");
	})()`))
}

// TestPages opens every page on a database with every kind of row and hostile values. A tab fails its test if it has seen an
// error, a warning, a violation of the policy, a dialog, or a request to another origin.
func TestPages(t *testing.T) {
	t.Parallel()
	if browser.Axe() == "" {
		t.Log("no axe-core in bin: the accessibility of the pages is NOT tested; `tools/need.sh axe` fetches it")
	}
	w := newWorld(t)
	url := serve(t, dashboard.Config{Pool: w.pool, Title: "staging " + script, Mask: dashboard.Unmasked, TraceURL: "https://traces.example.com/{trace_id}", Prefix: "/ops",
		AuthorizeForget: anybody, AuthorizeEnqueue: anyTopic, Enqueue: topicForms(t)})
	// axe takes seconds, so it looks at the first page of each kind; all in a campaign.
	looked := make(map[string]int)
	// The pages share tabs, because to start one costs more than to look at a page.
	tabs := make(chan *tab, 3)
	for range cap(tabs) {
		tabs <- open(t, url)
	}
	t.Run("all", func(t *testing.T) {
		for _, path := range w.pages {
			// A list is a kind, and so are all that are below one name.
			kind, _, _ := strings.Cut(path, "?")
			if dir, _, _ := strings.Cut(kind[1:], "/"); dir != "acts" && dir != kind[1:] {
				kind = kind[:strings.LastIndexByte(kind, '/')+1]
			}
			looked[kind]++
			axe := looked[kind] <= campaign.Of(1, len(w.pages))
			t.Run(strings.ReplaceAll(path[1:], "/", " "), func(t *testing.T) {
				t.Parallel()
				tb := <-tabs
				defer func() { tabs <- tb }()
				tb.T = t
				defer tb.Calm()
				tb.Look("light", 1280, 800)
				tb.visit(path)
				tb.Until(`document.readyState === "complete" && document.querySelector("h1").innerText && !document.querySelector('main [role="alert"]')`)
				if path == "/doctor" {
					tb.untilText("Checks:")
				}
				require.Equal(t, "outboxgen", tb.text("header strong"))
				require.Zero(t, value[int](tb, `document.querySelectorAll("img, main script, main style, svg[onload], [onfocus]").length`), "elements that came from data")
				tb.narrow()
				if axe {
					tb.accessible("")
				}
				tb.Look("dark", 375, 700)
				tb.narrow()
				if !axe {
					return
				}
				// What depends on colors and sizes. The rest is the same page.
				tb.accessible(`, runOnly: ["color-contrast", "scrollable-region-focusable", "target-size", "link-in-text-block"]`)
			})
		}
	})
}

// TestPagesThatAreNotThere have a way back too.
func TestPagesThatAreNotThere(t *testing.T) {
	t.Parallel()
	url := serve(t, dashboard.Config{Pool: pgtest.Plain(t)})
	tb := open(t, url)
	tb.Allow("the server responded with a status of")
	for path, text := range map[string]string{
		"/nothing": "There is nothing to get at this address.", "/topics/no/topic": "There is no topic no/topic.", "/listeners/nobody": "There is no listener nobody.",
		"/events/" + imageText: "is not a valid event id", "/events?since=" + "yesterday": "is not a valid time", "/acts/explode": "There is no such act.",
		"/consumers/cards/1": "Consumer cards keeps no such message.", "/acts/limit?topic=jobs/mail&per=tenant": "unknown limit jobs/mail per tenant",
	} {
		tb.Look("light", 375, 700)
		tb.visit(path)
		tb.untilText(text)
		tb.narrow()
		tb.accessible("")
		tb.Look("dark", 1280, 800)
		tb.accessible("")
		tb.follow("main a.button")
		require.Equal(t, "Overview", tb.text("h1"))
	}
}

// TestEmptyPages are those of a database in which nothing has happened.
func TestEmptyPages(t *testing.T) {
	t.Parallel()
	url := serve(t, dashboard.Config{Pool: pgtest.Plain(t), ReadOnly: true})
	tb := open(t, url)
	for path, text := range map[string]string{
		"/": "Nothing is here yet", "/events": "No event matches", "/dead": "No dead letters", "/listeners": "No listener is attached", "/consumers": "No consumer keeps a message", "/consumers/cards": "No dead letter", "/limits": "No topic has limits", "/audit": "No entries", "/doctor": "Checks:",
	} {
		tb.Look("light", 1280, 800)
		tb.visit(path)
		tb.untilText(text)
		require.Equal(t, "ada, read-only", tb.text(".who"))
		tb.accessible("")
		tb.Look("dark", 375, 700)
		tb.accessible("")
		tb.narrow()
	}
}
