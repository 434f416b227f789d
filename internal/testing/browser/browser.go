// Package browser tests pages in a Chromium without a screen. A tab of it fails its test when the page has trouble: an
// exception, an error or a warning in the console, a violation of its Content-Security-Policy, a dialog, or a request that
// it may not make.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/chromedp/chromedp"
)

// Patience is how long a test waits for something that must happen, on a busy machine too. It expires only if something is
// broken.
const Patience = 2 * time.Minute

// A Browser is shared by the tests of a package. Each has tabs of its own in it.
type Browser struct {
	ctx  context.Context
	stop func()
}

// Path finds Chromium; "" if there is none. OUTBOXGEN_CHROMIUM names another program.
func Path() string {
	for _, name := range []string{os.Getenv("OUTBOXGEN_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	return ""
}

// Start starts the program of a path, until Stop is called.
func Start(path string) (*Browser, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.Flag("headless", "new"), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-gpu", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.WSURLReadTimeout(Patience), chromedp.WindowSize(1280, 800))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // the sandbox refuses to run as root
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	if err := chromedp.Do(ctx); err != nil {
		cancel()
		stop()
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return &Browser{ctx: ctx, stop: func() { cancel(); stop() }}, nil
}

// Stop ends the browser and all its tabs.
func (b *Browser) Stop() { b.stop() }

// Process returns the id of the browser's first process, which is the parent of the others.
func (b *Browser) Process() int { return chromedp.FromContext(b.ctx).Browser.Process().Pid }
