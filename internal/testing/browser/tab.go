package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Tab is a tab of the browser. It keeps what went wrong in it. Its methods fail the test T if they do not come to an end.
type Tab struct {
	T   testing.TB // of the methods; a part of a test may replace it by its own
	Ctx context.Context

	may        func(*url.URL) bool
	scriptless bool

	mu       sync.Mutex
	troubles []string
	allowed  []string
	requests []string
}

// watch makes a page tell of violations of its Content-Security-Policy, also of those that Chromium does not log.
const watch = `document.addEventListener("securitypolicyviolation", function (e) { console.error("violates " + e.violatedDirective + ": " + e.blockedURI + " " + e.sample); })`

// Open opens a tab without cookies, cache or settings of others. It shows nothing yet. May decides which requests its pages
// may make; those of the schemes data and about they always may.
func (b *Browser) Open(t testing.TB, may func(*url.URL) bool) *Tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	tb := &Tab{T: t, Ctx: ctx, may: may}
	require.NoError(t, chromedp.Do(ctx))
	require.NoError(t, chromedp.Listen(ctx, tb.heard))
	_, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watch})
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		tb.T = t
		tb.Calm()
	})
	return tb
}

// heard is called for each event of the tab.
func (tb *Tab) heard(ev any) {
	trouble := ""
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		trouble = "exception: " + ev.ExceptionDetails.Text
		if ev.ExceptionDetails.Exception != nil {
			trouble += " " + ev.ExceptionDetails.Exception.Description
		}
	case *runtime.EventConsoleAPICalled:
		switch ev.Type {
		case runtime.ConsoleAPICalledTypeError, runtime.ConsoleAPICalledTypeWarning, runtime.ConsoleAPICalledTypeAssert:
			trouble = "console: "
			for _, arg := range ev.Args {
				trouble += " " + string(arg.Value) + arg.Description
			}
		}
	case *cdplog.EventEntryAdded:
		if ev.Entry.Level == cdplog.EntryLevelError || ev.Entry.Level == cdplog.EntryLevelWarning {
			trouble = fmt.Sprintf("log: %s: %s %s", ev.Entry.Source, ev.Entry.Text, ev.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		trouble = tb.request(ev.Request.URL)
	case *page.EventJavascriptDialogOpening:
		trouble = "dialog: " + ev.Message
	}
	if trouble != "" {
		tb.mu.Lock()
		defer tb.mu.Unlock()
		tb.troubles = append(tb.troubles, trouble)
	}
}

// request notes a request. It returns "" if the tab may make it.
func (tb *Tab) request(address string) (trouble string) {
	tb.mu.Lock()
	tb.requests = append(tb.requests, address)
	tb.mu.Unlock()
	at, err := url.Parse(address)
	if err == nil && (at.Scheme == "data" || at.Scheme == "about" || tb.may(at)) {
		return ""
	}
	return "a request that it may not make: " + address
}

// Requests returns the addresses that the tab has asked for.
func (tb *Tab) Requests() []string {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	return slices.Clone(tb.requests)
}

// Allow expects troubles that contain text, like those of a page that is not there.
func (tb *Tab) Allow(text string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.allowed = append(tb.allowed, text)
}

// Calm requires that the tab has seen no trouble that is not allowed, and forgets what it has seen.
func (tb *Tab) Calm() {
	tb.T.Helper()
	tb.mu.Lock()
	defer tb.mu.Unlock()
	wrong := slices.DeleteFunc(tb.troubles, func(trouble string) bool {
		return slices.ContainsFunc(tb.allowed, func(text string) bool { return strings.Contains(trouble, text) })
	})
	assert.Empty(tb.T, wrong, "troubles of a tab")
	tb.troubles = nil
}

// Do takes steps.
func (tb *Tab) Do(steps ...chromedp.Action[chromedp.Void]) {
	tb.T.Helper()
	ctx, cancel := context.WithTimeout(tb.Ctx, Patience)
	defer cancel()
	require.NoError(tb.T, chromedp.Do(ctx, steps...))
}

// Visit opens an address.
func (tb *Tab) Visit(address string) {
	tb.T.Helper()
	tb.Do(chromedp.Navigate(address))
}

// Value evaluates an expression in the page, and waits for it if it is a promise.
func Value[V any](tb *Tab, expression string) V {
	tb.T.Helper()
	ctx, cancel := context.WithTimeout(tb.Ctx, Patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[V](expression, chromedp.EvalAwaitPromise))
	require.NoError(tb.T, err, expression)
	return v
}

// Until waits until an expression is true. It may be evaluated in one page and then in the next.
func (tb *Tab) Until(expression string) {
	tb.T.Helper()
	tb.until("Boolean(" + expression + ")")
}

// until waits until an expression is true, or a promise that comes to true.
func (tb *Tab) until(expression string) {
	tb.T.Helper()
	ctx, cancel := context.WithTimeout(tb.Ctx, Patience)
	defer cancel()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression, chromedp.EvalAwaitPromise))
		if err == nil && ok {
			return
		}
		select {
		case <-ctx.Done():
			shown, _ := chromedp.Run(tb.Ctx, chromedp.Evaluate[string](state))
			require.FailNow(tb.T, "timeout", "waited for %s (%v) at %s", expression, err, shown)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// state is what the page shows, and where the focus is.
const state = `location.href.slice(0, 300) + "\nfocus " + document.hasFocus() + ", " + document.activeElement?.outerHTML.slice(0, 100) + "\n" + document.body.innerText`

// painted waits until the page has been painted as it is now. People see what they click on. And Chromium may drop what
// comes from the mouse and the keyboard while it has not painted a page whose size, colours or content have changed.
func (tb *Tab) painted() {
	tb.T.Helper()
	if tb.scriptless {
		return
	}
	tb.until(`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
}

// Click clicks with the mouse on the middle of the first element of a selector, once that is visible. It works by place and
// not by node, because a page may replace its nodes.
func (tb *Tab) Click(selector string) {
	tb.T.Helper()
	tb.Until(fmt.Sprintf("document.querySelector(%s)?.checkVisibility()", Quoted(selector)))
	tb.painted()
	type place struct{ X, Y float64 }
	at := Value[place](tb, fmt.Sprintf(`(function () {
		const e = document.querySelector(%s);
		e.scrollIntoView({block: "center", behavior: "instant"});
		const r = e.getClientRects()[0];
		return {X: r.x + r.width / 2, Y: r.y + r.height / 2};
	})()`, Quoted(selector)))
	tb.Do(chromedp.MouseClickXY(at.X, at.Y))
}

// Press presses keys, one after the other.
func (tb *Tab) Press(keys string, modifiers ...chromedp.KeyOption) {
	tb.T.Helper()
	tb.painted()
	tb.Do(chromedp.KeyEvent(keys, modifiers...))
}

// Look sets the colour scheme of the system and the size of the window. A window less than 500 pixels wide is a phone.
func (tb *Tab) Look(scheme string, width, height int) {
	tb.T.Helper()
	_, err := chromedp.Call(tb.Ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
	require.NoError(tb.T, err)
	_, err = chromedp.Call(tb.Ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(width), Height: int64(height), DeviceScaleFactor: 1, Mobile: width < 500})
	require.NoError(tb.T, err)
}

// NoScript makes the browser run no script of pages.
func (tb *Tab) NoScript() {
	tb.T.Helper()
	_, err := chromedp.Call(tb.Ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(tb.T, err)
	tb.scriptless = true
}

// Quoted returns a text as JavaScript.
func Quoted(text string) string {
	js, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can always be written
	}
	return string(js)
}
