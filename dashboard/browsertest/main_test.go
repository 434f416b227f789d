package browsertest

import (
	"fmt"
	"os"
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/browser"
)

// chromium is the browser that all tests share.
var chromium *browser.Browser

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	path := browser.Path()
	if path == "" {
		fmt.Fprintln(os.Stderr, "no Chromium found: the dashboard is NOT tested in a browser; install it (apt-get install chromium), or set OUTBOXGEN_CHROMIUM to its program")
		return 0
	}
	started, err := browser.Start(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer started.Stop()
	chromium = started
	return m.Run()
}
