package browsertest

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// browser is the context of the browser that all tests share.
var browser context.Context

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	path := browserPath()
	if path == "" {
		fmt.Fprintln(os.Stderr, "no Chromium found: the dashboard is NOT tested in a browser; install it (apt-get install chromium), or set OUTBOXGEN_CHROMIUM to its program")
		return 0
	}
	ctx, stop, err := startBrowser(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	browser = ctx
	return m.Run()
}
