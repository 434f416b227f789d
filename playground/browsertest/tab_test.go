package browsertest

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/browser"
)

// tab is a tab with the page.
type tab struct {
	*browser.Tab
	base string // the URL of the page
}

// address is the URL of the page, in its folder.
func address(t testing.TB) string {
	dir, err := filepath.Abs(os.Getenv(folder))
	require.NoError(t, err)
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Join(dir, "index.html"))}).String()
}

// open opens the page in a tab, and waits for the generator. The page may ask for nothing else than itself.
func open(t testing.TB, fragment string) *tab {
	t.Helper()
	return openAt(t, address(t), fragment)
}

// openAt is open for a page with another address.
func openAt(t testing.TB, base, fragment string) *tab {
	t.Helper()
	tb := &tab{Tab: chromium.Open(t, func(at *url.URL) bool { return at.String() == base || at.Scheme == "blob" }), base: base}
	tb.Visit(base + fragment)
	tb.Until(`document.querySelector("#count").textContent !== ""`)
	return tb
}

// value evaluates an expression in the page.
func value[T any](tb *tab, expression string) T {
	tb.T.Helper()
	return browser.Value[T](tb.Tab, expression)
}

// untilText waits until an element has a text.
func (tb *tab) untilText(selector, text string) {
	tb.T.Helper()
	tb.Until(fmt.Sprintf("document.querySelector(%q)?.textContent.includes(%q)", selector, text))
}

// enter presses Enter as a keyboard does: the page may say that no line end follows.
func (tb *tab) enter() {
	tb.T.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeRawKeyDown, input.DispatchKeyEventTypeKeyUp} {
		_, err := chromedp.Call(tb.Ctx, input.DispatchKeyEvent, input.DispatchKeyEventParams{
			Type: kind, Key: "Enter", Code: "Enter", WindowsVirtualKeyCode: 13,
		})
		require.NoError(tb.T, err)
	}
}
