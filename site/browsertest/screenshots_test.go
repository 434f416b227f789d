package browsertest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var (
	shots     = flag.String("screenshots", "", "write pictures of pages to this folder")
	shotPages = flag.String("pages", "index.html,start/tutorial.html,model/yaml.html,run/delivery.html,reference/rules.html", "the pages of -screenshots")
)

// TestScreenshots takes pictures for somebody who wants to look at the site.
func TestScreenshots(t *testing.T) {
	t.Parallel()
	if *shots == "" {
		t.Skip("only with -screenshots")
	}
	tb := open(t, folder)
	for _, page := range strings.Split(*shotPages, ",") {
		for _, width := range []int{1280, 360} {
			for _, scheme := range []string{"light", "dark"} {
				tb.Look(scheme, width, 1000)
				tb.visit(page)
				png, err := chromedp.Run(tb.Ctx, chromedp.CaptureScreenshot())
				require.NoError(t, err)
				name := fmt.Sprintf("%s-%d-%s.png", strings.NewReplacer("/", "-", ".html", "", "#", "-").Replace(page), width, scheme)
				require.NoError(t, os.WriteFile(filepath.Join(*shots, name), png, 0o600))
			}
		}
	}
}
