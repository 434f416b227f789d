package browsertest

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/browser"
)

// tab is a tab with a dashboard.
type tab struct {
	*browser.Tab
	base string // the URL of the dashboard, without the last slash
}

// open opens a tab. It may ask the dashboard only.
func open(t testing.TB, base string) *tab {
	t.Helper()
	base = strings.TrimSuffix(base, "/")
	return &tab{Tab: chromium.Open(t, func(at *url.URL) bool { return strings.HasPrefix(at.String(), base) }), base: base}
}

// visit opens a page of the dashboard.
func (tb *tab) visit(path string) {
	tb.T.Helper()
	tb.Visit(tb.base + path)
}

// value evaluates an expression in the page.
func value[T any](tb *tab, expression string) T {
	tb.T.Helper()
	return browser.Value[T](tb.Tab, expression)
}

// untilText waits until the page shows a text.
func (tb *tab) untilText(text string) {
	tb.T.Helper()
	tb.Until(fmt.Sprintf("document.body && document.body.innerText.includes(%q)", text))
}

func (tb *tab) text(selector string) string {
	tb.T.Helper()
	return value[string](tb, fmt.Sprintf("document.querySelector(%q).innerText.trim()", selector))
}

// follow clicks and waits for the page that it leads to.
func (tb *tab) follow(selector string) {
	tb.T.Helper()
	value[bool](tb, "window.seen = true")
	tb.Click(selector)
	tb.Until(`!window.seen && document.readyState === "complete"`)
}

// fill types into a field.
func (tb *tab) fill(name, text string) {
	tb.T.Helper()
	tb.Click(fmt.Sprintf(`main [name=%q]:not([type="hidden"])`, name))
	tb.Press(text)
}

// tabTo presses the tab key until the focus is on an element of a selector.
func (tb *tab) tabTo(selector string) {
	tb.T.Helper()
	for range 100 {
		tb.Press(tabKey)
		if value[bool](tb, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			return
		}
	}
	require.FailNow(tb.T, "the tab key does not lead there", selector)
}

// enter presses the enter key and waits for the page that it leads to.
func (tb *tab) enter() {
	tb.T.Helper()
	value[bool](tb, "window.seen = true")
	tb.Press(enterKey)
	tb.Until(`!window.seen && document.readyState === "complete"`)
}

const tabKey, enterKey = kb.Tab, kb.Enter
