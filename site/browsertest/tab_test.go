package browsertest

import (
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/browser"
)

// tab is a tab with the site.
type tab struct {
	*browser.Tab
	base string // the address of the site, without the last slash
}

// open opens a tab for the site of a folder. No request of its pages may leave the site.
func open(t *testing.T, site string) *tab {
	t.Helper()
	base := (&url.URL{Scheme: "file", Path: filepath.ToSlash(site)}).String()
	return &tab{Tab: chromium.Open(t, func(at *url.URL) bool { return strings.HasPrefix(at.String(), base+"/") }), base: base}
}

// visit opens a page of the site.
func (tb *tab) visit(page string) {
	tb.T.Helper()
	tb.Visit(tb.base + "/" + page)
	tb.Until(`document.readyState === "complete"`)
}

// value evaluates an expression in the page, and waits for it if it is a promise.
func value[T any](tb *tab, expression string) T {
	tb.T.Helper()
	return browser.Value[T](tb.Tab, expression)
}
