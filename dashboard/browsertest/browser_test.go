package browsertest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
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
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// browserPath finds Chromium; "" if there is none. OUTBOXGEN_CHROMIUM names another program.
func browserPath() string {
	for _, name := range []string{os.Getenv("OUTBOXGEN_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	return ""
}

// startBrowser starts the browser that all tests share. Each test has tabs of its own in it.
func startBrowser(path string) (context.Context, context.CancelFunc, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.Flag("headless", "new"), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-gpu", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.WSURLReadTimeout(pgtest.Patience), chromedp.WindowSize(1280, 800))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // the sandbox refuses to run as root
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	if err := chromedp.Do(ctx); err != nil {
		cancel()
		stop()
		return nil, nil, fmt.Errorf("start %s: %w", path, err)
	}
	return ctx, func() { cancel(); stop() }, nil
}

// tab is a tab of the browser. It keeps what went wrong in it.
type tab struct {
	t    testing.TB
	ctx  context.Context
	base string // the URL of the dashboard, without the last slash

	mu       sync.Mutex
	troubles []string
	allowed  []string
	asked    []string // the paths of all requests
}

// watch makes a page tell of violations of its Content-Security-Policy, also of those that Chromium does not log.
const watch = `document.addEventListener("securitypolicyviolation", function (e) { console.error("violates " + e.violatedDirective + ": " + e.blockedURI + " " + e.sample); })`

// open opens a tab without cookies, cache or settings of others. When the test ends, the tab must have seen no error, no warning,
// no violation of the policy, and no request to another origin.
func open(t testing.TB, base string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	tb := &tab{t: t, ctx: ctx, base: strings.TrimSuffix(base, "/")}
	require.NoError(t, chromedp.Do(ctx))
	require.NoError(t, chromedp.Listen(ctx, tb.heard))
	_, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watch})
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		tb.t = t
		tb.calm()
	})
	return tb
}

// calm requires that the tab has seen no trouble, and forgets what it has seen.
func (tb *tab) calm() {
	tb.t.Helper()
	assert.Empty(tb.t, tb.wrong(), "troubles of a tab")
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.troubles = nil
}

// heard is called for each event of the tab.
func (tb *tab) heard(ev any) {
	trouble := ""
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		trouble = "exception: " + ev.ExceptionDetails.Text
		if ev.ExceptionDetails.Exception != nil {
			trouble += " " + ev.ExceptionDetails.Exception.Description
		}
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning || ev.Type == runtime.ConsoleAPICalledTypeAssert {
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
		at, err := url.Parse(ev.Request.URL)
		if err != nil || !strings.HasPrefix(ev.Request.URL, tb.base) && at.Scheme != "data" && at.Scheme != "about" {
			trouble = "request to another origin: " + ev.Request.URL
		} else {
			tb.mu.Lock()
			tb.asked = append(tb.asked, at.Path)
			tb.mu.Unlock()
		}
	case *page.EventJavascriptDialogOpening:
		trouble = "dialog: " + ev.Message
	}
	if trouble != "" {
		tb.mu.Lock()
		defer tb.mu.Unlock()
		tb.troubles = append(tb.troubles, trouble)
	}
}

// allow expects troubles that contain text, like those of a page that is not there.
func (tb *tab) allow(text string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.allowed = append(tb.allowed, text)
}

func (tb *tab) wrong() []string {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	var wrong []string
	for _, trouble := range tb.troubles {
		ok := false
		for _, text := range tb.allowed {
			ok = ok || strings.Contains(trouble, text)
		}
		if !ok {
			wrong = append(wrong, trouble)
		}
	}
	return wrong
}

// requests is the number of requests so far.
func (tb *tab) requests() int {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	return len(tb.asked)
}

func (tb *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, pgtest.Patience)
	defer cancel()
	require.NoError(tb.t, chromedp.Do(ctx, steps...))
}

// visit opens a page of the dashboard.
func (tb *tab) visit(path string) {
	tb.t.Helper()
	tb.do(chromedp.Navigate(tb.base + path))
}

// value evaluates an expression in the page.
func value[T any](tb *tab, expression string) T {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, pgtest.Patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(tb.t, err, expression)
	return v
}

// until waits until an expression is true. It may be evaluated in one page and then in the next.
func (tb *tab) until(expression string) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, pgtest.Patience)
	defer cancel()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && ok {
			return
		}
		select {
		case <-ctx.Done():
			shown, _ := chromedp.Run(tb.ctx, chromedp.Evaluate[string]("location.pathname + location.search + '\\n' + document.body.innerText"))
			require.FailNow(tb.t, "timeout", "waited for %s (%v) at %s", expression, err, shown)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// untilText waits until the page shows a text.
func (tb *tab) untilText(text string) {
	tb.t.Helper()
	tb.until(fmt.Sprintf("document.body && document.body.innerText.includes(%q)", text))
}

func (tb *tab) text(selector string) string {
	tb.t.Helper()
	return value[string](tb, fmt.Sprintf("document.querySelector(%q).innerText.trim()", selector))
}

// click clicks on the first element of a selector with the mouse. It works by place and not by node, because a refresh replaces nodes.
func (tb *tab) click(selector string) {
	tb.t.Helper()
	tb.until(fmt.Sprintf("document.querySelector(%q)", selector))
	type place struct{ X, Y float64 }
	at := value[place](tb, fmt.Sprintf(`(function () {
		const e = document.querySelector(%q);
		e.scrollIntoView({block: "center"});
		const r = e.getClientRects()[0];
		return {X: r.x + r.width / 2, Y: r.y + r.height / 2};
	})()`, selector))
	tb.do(chromedp.MouseClickXY(at.X, at.Y))
}

// follow clicks and waits for the page that it leads to.
func (tb *tab) follow(selector string) {
	tb.t.Helper()
	value[bool](tb, "window.seen = true")
	tb.click(selector)
	tb.until(`!window.seen && document.readyState === "complete"`)
}

// fill types into a field.
func (tb *tab) fill(name, text string) {
	tb.t.Helper()
	tb.click(fmt.Sprintf(`main [name=%q]:not([type="hidden"])`, name))
	tb.press(text)
}

// tabTo presses the tab key until the focus is on an element of a selector.
func (tb *tab) tabTo(selector string) {
	tb.t.Helper()
	for range 100 {
		tb.press(tabKey)
		if value[bool](tb, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			return
		}
	}
	require.FailNow(tb.t, "the tab key does not lead there", selector)
}

// enter presses the enter key and waits for the page that it leads to.
func (tb *tab) enter() {
	tb.t.Helper()
	value[bool](tb, "window.seen = true")
	tb.press(enterKey)
	tb.until(`!window.seen && document.readyState === "complete"`)
}

func (tb *tab) press(keys string) {
	tb.t.Helper()
	tb.do(chromedp.KeyEvent(keys))
}

const tabKey, enterKey = kb.Tab, kb.Enter

// look sets the color scheme and the size of the window.
func (tb *tab) look(scheme string, width, height int) {
	tb.t.Helper()
	_, err := chromedp.Call(tb.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
	require.NoError(tb.t, err)
	_, err = chromedp.Call(tb.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(width), Height: int64(height), DeviceScaleFactor: 1, Mobile: width < 500})
	require.NoError(tb.t, err)
}

// noScript makes the browser run no script of pages.
func (tb *tab) noScript() {
	tb.t.Helper()
	_, err := chromedp.Call(tb.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(tb.t, err)
}
