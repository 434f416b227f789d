package browsertest

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/browser"
)

// accessible requires that axe finds nothing serious in the page as it is.
func (tb *tab) accessible(options string) {
	tb.T.Helper()
	require.NotEmpty(tb.T, browser.Axe(), "no axe-core in bin: `tools/need.sh axe` fetches it, and needs npm")
	require.Empty(tb.T, tb.Violations(options, "serious", "critical"), "serious findings of axe")
}

// narrow requires that the page does not scroll sideways.
func (tb *tab) narrow() {
	tb.T.Helper()
	require.Empty(tb.T, value[string](tb, `(function () {
		const width = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth <= width) return "";
		return "the page is " + document.documentElement.scrollWidth + " wide in " + width + ": " + Array.from(document.querySelectorAll("body *"))
			.filter(function (e) { return e.getBoundingClientRect().right > width + 1 && !e.closest(".table > *, .code > *, .diagram > *"); }).slice(0, 5)
			.map(function (e) { return e.tagName + "." + e.className + " " + e.textContent.trim().slice(0, 40); }).join("; ");
	})()`))
}

// pages returns all pages of the site, without those of the playground, which has tests of its own.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	require.NoError(t, filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		page, err := filepath.Rel(folder, name)
		if err == nil && filepath.Ext(name) == ".html" && !strings.HasPrefix(page, "playground") {
			found = append(found, filepath.ToSlash(page))
		}
		return err
	}))
	require.Greater(t, len(found), 40)
	return found
}

// TestPages opens each page from its file. On a phone nothing scrolls sideways, axe finds nothing serious, and no request
// leaves the site. In the dark axe looks at one page of each folder, and at the findings, whose examples have lines in red
// and green: the pages share their colors.
func TestPages(t *testing.T) {
	t.Parallel()
	tabs := make(chan *tab, 2)
	for range cap(tabs) {
		tabs <- open(t, folder)
	}
	dark := map[string]bool{"reference/rules.html": true}
	looked := make(map[string]bool) // folders
	for _, page := range pages(t) {
		dark[page] = dark[page] || !looked[path.Dir(page)]
		looked[path.Dir(page)] = true
	}
	t.Run("all", func(t *testing.T) {
		for _, page := range pages(t) {
			t.Run(page, func(t *testing.T) {
				t.Parallel()
				tb := <-tabs
				defer func(before testing.TB) { tb.T = before; tabs <- tb }(tb.T)
				tb.T = t
				tb.Look("light", 1280, 800)
				tb.visit(page)
				tb.narrow()
				tb.accessible("")
				tb.Look("dark", 360, 700)
				tb.narrow()
				if dark[page] { // what depends on colors and sizes; the rest is the same page
					tb.accessible(`, runOnly: ["color-contrast", "scrollable-region-focusable", "target-size", "link-in-text-block"]`)
				}
			})
		}
	})
}

// TestSearch: the search finds a page from any folder, by the mouse and by the keyboard, and marks what it found.
func TestSearch(t *testing.T) {
	t.Parallel()
	for _, size := range []struct {
		name  string
		width int
	}{{"laptop", 1280}, {"phone", 360}} {
		t.Run(size.name, func(t *testing.T) {
			t.Parallel()
			tb := open(t, folder)
			tb.Look("light", size.width, 700)
			tb.visit("operate/runbook.html")
			require.NotContains(t, strings.Join(tb.Requests(), " "), "search-index", "the index is loaded before somebody searches")

			tb.Click("button.search")
			tb.Press("dedupe")
			tb.Until(`document.querySelectorAll("#found li").length > 3`)
			require.Contains(t, strings.ToLower(value[string](tb, `document.querySelector("#found li mark").textContent`)), "dedupe")
			tb.narrow()
			tb.accessible("")
			tb.Press(kb.Enter)
			tb.Until(`!location.pathname.endsWith("runbook.html") && document.readyState === "complete"`)
			require.Contains(t, strings.ToLower(value[string](tb, `document.querySelector("article").innerText`)), "dedupe")

			tb.Press("/" + "unknown-key")
			tb.Until(`Array.from(document.querySelectorAll("#found a")).some(a => a.href.endsWith("reference/rules.html#unknown-key"))`)
			tb.Click(`#found a[href$="reference/rules.html#unknown-key"]`)
			tb.Until(`location.hash === "#unknown-key" && document.querySelector("dialog[open]") === null`)

			tb.Press("/" + "xyzzyplugh")
			tb.Until(`document.querySelector(".said").textContent === "Nothing found."`)
		})
	}
}

// TestTheme: a page has the colors of the system, and those that somebody has chosen, also in the next page.
func TestTheme(t *testing.T) {
	t.Parallel()
	tb := open(t, folder)
	const brightness = `getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).reduce((sum, c) => sum + Number(c), 0)`
	const code = `getComputedStyle(document.querySelector(".code span[class]")).color`
	const picture = `document.querySelector("picture img").currentSrc`
	tb.Look("dark", 1280, 800)
	tb.visit("operate/dashboard.html")
	require.Less(t, value[int](tb, brightness), 150)
	tb.Until(picture + `.endsWith("-dark.png")`)
	darkCode := value[string](tb, code)
	tb.Look("light", 1280, 800)
	require.Greater(t, value[int](tb, brightness), 700)
	require.NotEqual(t, darkCode, value[string](tb, code))
	tb.Until(picture + `.endsWith("overview.png")`)

	tb.Click("button.theme")
	tb.Until(brightness + " < 150")
	tb.Until(picture + `.endsWith("-dark.png")`)
	tb.visit("run/delivery.html")
	require.Less(t, value[int](tb, brightness), 150)
	tb.Click("button.theme")
	tb.Until(brightness + " > 700")
	tb.Look("dark", 1280, 800)
	require.Less(t, value[int](tb, brightness), 150, "who chooses what the system has follows it again")
}

// TestMenu: on a phone the table of contents is behind a button, and leads to each page. The parts of the page are behind another.
func TestMenu(t *testing.T) {
	t.Parallel()
	tb := open(t, folder)
	tb.Look("light", 360, 700)
	tb.visit("run/delivery.html")
	require.False(t, value[bool](tb, `document.querySelector("#shelf").checkVisibility()`))
	tb.Click("button.menu")
	tb.Until(`document.querySelector("#shelf").checkVisibility()`)
	require.Equal(t, "Start Model Run Operate Change Reference Inside",
		value[string](tb, `Array.from(document.querySelectorAll("#shelf h2")).map(h => h.textContent).join(" ")`))
	tb.narrow()
	tb.accessible("")
	tb.Click(`#shelf a[href$="reference/cli.html"]`)
	tb.Until(`location.pathname.endsWith("/reference/cli.html") && document.readyState === "complete"`)
	require.False(t, value[bool](tb, `document.querySelector(".here").checkVisibility()`))
	tb.Click(".parts summary")
	tb.Click(`.parts a[href="#outboxgen-doctor"]`)
	tb.Until(`location.hash === "#outboxgen-doctor"`)
}

// TestElsewhere: the site works in another folder, whose name is not plain.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	copied := filepath.Join(root, "a b", "ä")
	require.NoError(t, os.CopyFS(copied, os.DirFS(folder)))
	tb := open(t, copied)
	tb.Look("light", 1280, 800)
	tb.visit("index.html")
	tb.Click(`.acts a[href="start/tutorial.html"]`)
	tb.Until(`location.pathname.endsWith("/start/tutorial.html") && document.readyState === "complete"`)
	require.Equal(t, "sticky", value[string](tb, `getComputedStyle(document.querySelector("header")).position`), "the style sheet is there")
}
