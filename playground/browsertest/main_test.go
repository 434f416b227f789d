package browsertest

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// folder is a variable of the environment with the folder that `make playground` has written.
const folder = "OUTBOXGEN_TEST_PLAYGROUND"

// browser is the context of the browser that all tests share.
var browser context.Context

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv(folder) == "" {
		fmt.Fprintln(os.Stderr, "the playground is NOT tested in a browser; to test it, make test-playground")
		return 0
	}
	path := browserPath()
	if path == "" {
		fmt.Fprintln(os.Stderr, "no Chromium found: install it (apt-get install chromium), or set OUTBOXGEN_CHROMIUM to its program")
		return 1
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
