package check

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// block is one fenced block of a page, with the comments in front of it.
type block struct {
	page     string // relative to the root, docs/model/yaml.md for example
	line     int    // of the fence
	language string
	text     string
	comments map[string]string // by their keyword
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

var (
	fence    = regexp.MustCompile("^( *)```([a-z]*)$")
	comment  = regexp.MustCompile(`(?s)^<!--\s*(go|in|from|yaml|sql|sh|file|output|events|not run):?\s*(.*?)\s*-->$`)
	states   = regexp.MustCompile(`^<!-- (states: [a-z]+|/states) -->$`)
	keywords = map[string][]string{ // by language
		"go":   {"go", "in", "from", "file"},
		"yaml": {"yaml", "file"},
		"sql":  {"sql", "file"},
		"sh":   {"sh"},
		"text": {"output"},
	}
)

// read returns the blocks of a page in their order. A comment stands directly in front of its block; only an events
// comment is about all that follows it, and is returned as a block of the language "events". Comments around a table of
// states are for the tests of the cores, which keep that table.
func read(t testing.TB, page string) (blocks []block) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	comments := make(map[string]string)
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		switch m := fence.FindStringSubmatch(lines[i]); {
		case strings.HasPrefix(line, "<!--"):
			start := i
			for !strings.HasSuffix(strings.TrimSpace(lines[i]), "-->") {
				i++
				require.Less(t, i, len(lines), "%s:%d: the comment does not end", page, start+1)
			}
			if states.MatchString(line) {
				continue
			}
			c := comment.FindStringSubmatch(strings.TrimSpace(strings.Join(lines[start:i+1], "\n")))
			require.NotNil(t, c, "%s:%d: the comment has an unknown keyword", page, start+1)
			if c[1] == "events" {
				blocks = append(blocks, block{page: page, line: start + 1, language: "events", text: c[2]})
				continue
			}
			comments[c[1]] = c[2]
		case m != nil:
			start, indent := i, m[1]
			var body []string
			for i++; strings.TrimSpace(lines[i]) != "```"; i++ {
				body = append(body, strings.TrimPrefix(lines[i], indent))
				require.Less(t, i+1, len(lines), "%s:%d: the block does not end", page, start+1)
			}
			b := block{page: page, line: start + 1, language: m[2], text: strings.Join(body, "\n") + "\n", comments: comments}
			require.NotEmpty(t, b.language, "%s: the block has no language: use go, yaml, sql, sh, json, or text for what is not code", b)
			for keyword := range comments {
				require.True(t, keyword == "not run" || slices.Contains(keywords[b.language], keyword), "%s: %q says nothing about a block of %s", b, keyword, b.language)
			}
			blocks, comments = append(blocks, b), make(map[string]string)
		default:
			require.NotContains(t, lines[i], "```", "%s:%d: neither the begin nor the end of a block", page, i+1)
			require.Empty(t, comments, "%s:%d: a comment without its block", page, i+1)
		}
	}
	return blocks
}

// tested are the pages whose blocks another test runs.
var tested = map[string]string{
	"docs/start/drivers.md":   "sqltx/drivertest.TestDocs",
	"docs/start/migrating.md": "internal/testing/runtimetest.TestMovingAHandWrittenTable",
	"docs/run/sql.md":         "internal/testing/runtimetest.TestProducersInSQL",
}

// TestTestedPages: the tests in the list exist, if their pages do.
func TestTestedPages(t *testing.T) {
	t.Parallel()
	for page, test := range tested {
		if _, err := os.Stat(filepath.Join(root, page)); err != nil {
			continue
		}
		folder, name, _ := strings.Cut(test, ".")
		files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(files, func(file string) bool {
			code, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(code), "func "+name+"(")
		}), "%s: there is no test %s", page, test)
	}
}

// pages returns the pages that users read, without those that another test runs.
func pages(t testing.TB) (list []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, f := range found {
			page, err := filepath.Rel(root, f)
			require.NoError(t, err)
			if page = filepath.ToSlash(page); tested[page] == "" {
				list = append(list, page)
			}
		}
	}
	require.Greater(t, len(list), 20)
	return list
}

// all returns the blocks of all pages that are run: those of the given languages, in their order.
func all(t testing.TB, languages ...string) (blocks []block) {
	t.Helper()
	for _, page := range pages(t) {
		for _, b := range read(t, page) {
			if _, skipped := b.comments["not run"]; !skipped && slices.Contains(languages, b.language) {
				blocks = append(blocks, b)
			}
		}
	}
	return blocks
}
