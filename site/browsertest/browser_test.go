package browsertest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patience expires only if something is broken.
const patience = 2 * time.Minute

// browserPath finds Chromium; "" if there is none. OUTBOXGEN_CHROMIUM names another program.
func browserPath() string {
	for _, name := range []string{os.Getenv("OUTBOXGEN_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	return ""
}

func startBrowser(path string) (context.Context, context.CancelFunc, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.Flag("headless", "new"), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("hide-scrollbars", true), chromedp.WSURLReadTimeout(patience))
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

// tab is a tab of the browser. Its test fails at the end if the tab has seen an error, or a request that leaves the site.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string // the address of the site, without the last slash

	mu       sync.Mutex
	troubles []string
	asked    []string // the files of all requests, below the site
}

// open opens a tab that shares nothing with others. It shows the site of a folder.
func open(t *testing.T, site string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	tb := &tab{t: t, ctx: ctx, base: (&url.URL{Scheme: "file", Path: filepath.ToSlash(site)}).String()}
	require.NoError(t, chromedp.Do(ctx))
	require.NoError(t, chromedp.Listen(ctx, tb.heard))
	t.Cleanup(func() {
		cancel()
		tb.mu.Lock()
		defer tb.mu.Unlock()
		assert.Empty(t, tb.troubles, "troubles of a tab")
	})
	return tb
}

// heard is called for each event of the tab.
func (tb *tab) heard(ev any) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		tb.troubles = append(tb.troubles, "exception: "+ev.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning {
			tb.troubles = append(tb.troubles, fmt.Sprint("console: ", ev.Args))
		}
	case *cdplog.EventEntryAdded:
		if ev.Entry.Level == cdplog.EntryLevelError || ev.Entry.Level == cdplog.EntryLevelWarning {
			tb.troubles = append(tb.troubles, fmt.Sprintf("log: %s: %s %s", ev.Entry.Source, ev.Entry.Text, ev.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		file, ok := strings.CutPrefix(ev.Request.URL, tb.base+"/")
		if !ok && !strings.HasPrefix(ev.Request.URL, "data:") {
			tb.troubles = append(tb.troubles, "a request leaves the site: "+ev.Request.URL)
		}
		tb.asked = append(tb.asked, file)
	}
}

// requests returns the files that the tab has asked for.
func (tb *tab) requests() []string {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	return append([]string(nil), tb.asked...)
}

// visit opens a page of the site.
func (tb *tab) visit(page string) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	require.NoError(tb.t, chromedp.Do(ctx, chromedp.Navigate(tb.base+"/"+page)))
	tb.until(`document.readyState === "complete"`)
}

// value evaluates an expression in the page, and waits for it if it is a promise.
func value[T any](tb *tab, expression string) T {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(tb.t, err, expression)
	return v
}

// until waits until an expression is true. It may be evaluated in one page and then in the next.
func (tb *tab) until(expression string) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && ok {
			return
		}
		select {
		case <-ctx.Done():
			require.FailNow(tb.t, "timeout", "waited for %s (%v)", expression, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// click clicks with the mouse on the middle of the first element of a selector that is visible.
func (tb *tab) click(selector string) {
	tb.t.Helper()
	tb.until(fmt.Sprintf("document.querySelector(%s)?.checkVisibility()", quoted(selector)))
	type place struct{ X, Y float64 }
	at := value[place](tb, fmt.Sprintf(`(function () {
		const e = document.querySelector(%s);
		e.scrollIntoView({block: "center", behavior: "instant"});
		const r = e.getClientRects()[0];
		return {X: r.x + r.width / 2, Y: r.y + r.height / 2};
	})()`, quoted(selector)))
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	require.NoError(tb.t, chromedp.Do(ctx, chromedp.MouseClickXY(at.X, at.Y)))
}

func (tb *tab) press(keys string) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	require.NoError(tb.t, chromedp.Do(ctx, chromedp.KeyEvent(keys)))
}

// look sets the color scheme of the system and the size of the window.
func (tb *tab) look(scheme string, width, height int) {
	tb.t.Helper()
	_, err := chromedp.Call(tb.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
	require.NoError(tb.t, err)
	_, err = chromedp.Call(tb.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(width), Height: int64(height), DeviceScaleFactor: 1, Mobile: width < 500})
	require.NoError(tb.t, err)
}

// quoted returns a text as JavaScript.
func quoted(text string) string {
	js, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string can always be written
	}
	return string(js)
}
