package browsertest

import (
	"fmt"
	"os"
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/browser"
)

// folder is a variable of the environment with the folder that `make playground` has written.
const folder = "OUTBOXGEN_TEST_PLAYGROUND"

// chromium is the browser that all tests share.
var chromium *browser.Browser

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv(folder) == "" {
		fmt.Fprintln(os.Stderr, "the playground is NOT tested in a browser; to test it, make test-playground")
		return 0
	}
	path := browser.Path()
	if path == "" {
		fmt.Fprintln(os.Stderr, "no Chromium found: install it (apt-get install chromium), or set OUTBOXGEN_CHROMIUM to its program")
		return 1
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
