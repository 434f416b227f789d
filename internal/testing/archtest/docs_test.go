package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	testName = regexp.MustCompile("`([a-z_/]+)\\.((?:Test|Fuzz|Example)[A-Za-z0-9_]*)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)
	goldens  = regexp.MustCompile("`generator/testdata/([a-z0-9_-]+)`")
	link     = regexp.MustCompile(`(?:\]\(|src(?:set)?=")([^)#\s"]*)(?:#([^)]*))?[)"]`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced   = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
)

// TestConformanceNamesTests checks that every rule in docs/inside/conformance.md, and every threat in
// docs/operate/security.md, names a test and that these tests exist.
func TestConformanceNamesTests(t *testing.T) {
	t.Parallel()
	tests := make(map[string]map[string]bool) // by package, each read once
	for _, page := range []struct {
		name, head string
		least      int
	}{{"docs/inside/conformance.md", "| rule", 100}, {"docs/operate/security.md", "| who", 30}} {
		text, err := os.ReadFile("../../../" + page.name)
		require.NoError(t, err)
		named := testName.FindAllStringSubmatch(string(text), -1)
		require.Greater(t, len(named), page.least, "the table has lost its tests")
		for _, m := range named {
			if tests[m[1]] == nil {
				tests[m[1]] = testsOf(t, m[1])
			}
			require.True(t, tests[m[1]][m[2]], "%s names %s, which %s does not have", page.name, m[2], m[1])
		}
		for _, m := range goldens.FindAllStringSubmatch(string(text), -1) {
			require.DirExists(t, filepath.Join("../../../generator/testdata", m[1]))
		}
		// Every line of a table names a test.
		for n, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, page.head) {
				require.True(t, testName.MatchString(line) || goldens.MatchString(line), "%s:%d names no test", page.name, n+1)
			}
		}
	}
}

func testsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../../..", dir, "*_test.go"))
	require.NoError(t, err)
	found := make(map[string]bool)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range testFunc.FindAllStringSubmatch(string(source), -1) {
			found[m[1]] = true
		}
	}
	return found
}

// anchors returns the anchors of a document: its headings as GitHub links to them.
func anchors(text []byte) map[string]bool {
	found := make(map[string]bool)
	for _, m := range heading.FindAllSubmatch(fenced.ReplaceAll(text, nil), -1) {
		name := strings.ToLower(regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(string(m[1]), "$1"))
		name = regexp.MustCompile(`[^\pL\pN_ -]`).ReplaceAllString(name, "")
		found[strings.ReplaceAll(name, " ", "-")] = true
	}
	return found
}

// TestLinks checks that every relative link in the documents, and every picture, leads to a file, and to a heading in
// it.
func TestLinks(t *testing.T) {
	t.Parallel()
	var docs []string
	for _, pattern := range []string{
		"../../../*.md", "../../../docs/*.md", "../../../docs/*/*.md", "../../../examples/*/*.md",
	} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		docs = append(docs, found...)
	}
	require.NotEmpty(t, docs)
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := doc
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(doc), m[1])
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s links to %s", doc, m[1])
			if m[2] != "" && strings.HasSuffix(target, ".md") {
				page, err := os.ReadFile(target)
				require.NoError(t, err)
				require.True(t, anchors(page)[m[2]], "%s links to %s#%s, which has no such heading", doc, m[1], m[2])
			}
		}
	}
}

// TestShelf: docs/README.md lists each page once, under the heading of its folder, and those of the root. `make site` makes
// its table of contents of the same list.
func TestShelf(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/README.md")
	require.NoError(t, err)
	listed := make(map[string]bool)
	var folders []string
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		folder := strings.ToLower(section[:strings.Index(section, "\n")])
		folders = append(folders, folder)
		for _, m := range link.FindAllStringSubmatch(section, -1) {
			require.False(t, listed[m[1]], "docs/README.md lists %s twice", m[1])
			require.Contains(t, []string{folder, ".."}, filepath.Dir(m[1]), m[1])
			listed[m[1]] = true
		}
	}
	require.Equal(t, []string{"start", "model", "run", "operate", "change", "reference", "inside"}, folders, "the order in which a user needs them")
	pages, err := filepath.Glob("../../../docs/*/*.md")
	require.NoError(t, err)
	roots, err := filepath.Glob("../../../*.md")
	require.NoError(t, err)
	for _, page := range append(pages, roots...) {
		name, err := filepath.Rel("../../../docs", page)
		require.NoError(t, err)
		if name = filepath.ToSlash(name); name != "../README.md" {
			require.True(t, listed[name], "docs/README.md does not list %s", name)
		}
	}
	pages, err = filepath.Glob("../../../docs/*.md")
	require.NoError(t, err)
	require.Len(t, pages, 1, "a page stands in one of the folders")
}
