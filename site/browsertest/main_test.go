package browsertest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/browser"
)

var (
	chromium *browser.Browser // that all tests share
	folder   string           // the site, with symbolic links resolved
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	site := os.Getenv("OUTBOXGEN_SITE")
	if site == "" {
		fmt.Fprintln(os.Stderr, "the site is NOT tested in a browser; to test it, make test-site")
		return 0
	}
	path := browser.Path()
	if path == "" {
		fmt.Fprintln(os.Stderr, "no Chromium found: install it (apt-get install chromium), or set OUTBOXGEN_CHROMIUM to its program")
		return 1
	}
	var err error
	if folder, err = filepath.EvalSymlinks(site); err == nil {
		folder, err = filepath.Abs(folder)
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(folder, "index.html"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "OUTBOXGEN_SITE is not a site:", err)
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
