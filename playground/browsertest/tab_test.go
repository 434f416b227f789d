package browsertest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
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
		chromedp.Flag("disable-gpu", true), chromedp.WSURLReadTimeout(pgtest.Patience), chromedp.WindowSize(1280, 800))
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
	base string // the URL of the page

	mu       sync.Mutex
	troubles []string
}

// watch makes a page tell of violations of its Content-Security-Policy, also of those that Chromium does not log.
const watch = `document.addEventListener("securitypolicyviolation", (e) => console.error("violates " + e.violatedDirective + ": " + e.blockedURI))`

// address is the URL of the page, in its folder.
func address(t testing.TB) string {
	dir, err := filepath.Abs(os.Getenv(folder))
	require.NoError(t, err)
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Join(dir, "index.html"))}).String()
}

// open opens the page in a tab without cookies, cache or settings of others, and waits for the generator. When the test
// ends, the tab must have seen no error, no warning, no violation of the policy, and no request except for the page.
func open(t testing.TB, fragment string) *tab {
	t.Helper()
	return openAt(t, address(t), fragment)
}

// openAt is open for a page with another address.
func openAt(t testing.TB, base, fragment string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	tb := &tab{t: t, ctx: ctx, base: base}
	require.NoError(t, chromedp.Do(ctx))
	require.NoError(t, chromedp.Listen(ctx, tb.heard))
	_, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	require.NoError(t, err)
	_, err = chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watch})
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		tb.mu.Lock()
		defer tb.mu.Unlock()
		assert.Empty(t, tb.troubles, "troubles of a tab")
	})
	tb.do(chromedp.Navigate(base + fragment))
	tb.until(`document.querySelector("#count").textContent !== ""`)
	return tb
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
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning {
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
		if err != nil || ev.Request.URL != tb.base && at.Scheme != "data" && at.Scheme != "blob" {
			trouble = "request: " + ev.Request.URL
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

func (tb *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, pgtest.Patience)
	defer cancel()
	require.NoError(tb.t, chromedp.Do(ctx, steps...))
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

// until waits until an expression is true.
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
			shown, _ := chromedp.Run(tb.ctx, chromedp.Evaluate[string](`"focus " + document.hasFocus() + " of " + document.activeElement?.outerHTML.slice(0, 99) + "\n" + document.body.innerText`))
			require.FailNow(tb.t, "timeout", "waited for %s (%v) at %s", expression, err, shown)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// untilText waits until an element has a text.
func (tb *tab) untilText(selector, text string) {
	tb.t.Helper()
	tb.until(fmt.Sprintf("document.querySelector(%q)?.textContent.includes(%q)", selector, text))
}

// click clicks on the first element of a selector with the mouse.
func (tb *tab) click(selector string) {
	tb.t.Helper()
	tb.until(fmt.Sprintf("document.querySelector(%q)", selector))
	type place struct{ X, Y float64 }
	at := value[place](tb, fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({block: "nearest"});
		const r = e.getClientRects()[0];
		return {X: r.x + r.width / 2, Y: r.y + r.height / 2};
	})()`, selector))
	tb.do(chromedp.MouseClickXY(at.X, at.Y))
}

func (tb *tab) press(keys string, modifiers ...chromedp.KeyOption) {
	tb.t.Helper()
	tb.do(chromedp.KeyEvent(keys, modifiers...))
}

// enter presses Enter as a keyboard does: the page may say that no line end follows.
func (tb *tab) enter() {
	tb.t.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeRawKeyDown, input.DispatchKeyEventTypeKeyUp} {
		_, err := chromedp.Call(tb.ctx, input.DispatchKeyEvent, input.DispatchKeyEventParams{
			Type: kind, Key: "Enter", Code: "Enter", WindowsVirtualKeyCode: 13,
		})
		require.NoError(tb.t, err)
	}
}

// look sets the colour scheme and the size of the window.
func (tb *tab) look(scheme string, width, height int) {
	tb.t.Helper()
	_, err := chromedp.Call(tb.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
	require.NoError(tb.t, err)
	_, err = chromedp.Call(tb.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(width), Height: int64(height), DeviceScaleFactor: 1, Mobile: width < 500})
	require.NoError(tb.t, err)
}
