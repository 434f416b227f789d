package runtimetest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Page is a document whose blocks of code a test runs. Take returns the blocks. End fails if nobody took one, so that
// the page has no block that does not run.
type Page struct {
	path   string
	blocks []block
}

type block struct {
	heading, language, text string
	taken                   bool
}

// OpenPage reads a document.
func OpenPage(t testing.TB, path string) *Page {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	p := &Page{path: path}
	heading, inside := "", false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "```") && !inside:
			p.blocks = append(p.blocks, block{heading: heading, language: strings.TrimSpace(strings.TrimPrefix(line, "```"))})
			inside = true
		case strings.HasPrefix(line, "```"):
			inside = false
		case inside:
			p.blocks[len(p.blocks)-1].text += line
		case strings.HasPrefix(line, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		}
	}
	require.False(t, inside, "%s: a block of code does not end", path)
	return p
}

// Take returns the n blocks of a language under a heading, in their order.
func (p *Page) Take(t testing.TB, heading, language string, n int) []string {
	t.Helper()
	var found []string
	for i := range p.blocks {
		if b := &p.blocks[i]; b.heading == heading && b.language == language {
			b.taken = true
			found = append(found, b.text)
		}
	}
	require.Len(t, found, n, "%s: blocks of %s under %q", p.path, language, heading)
	return found
}

// End checks that every block of these languages was taken.
func (p *Page) End(t testing.TB, languages ...string) {
	t.Helper()
	for _, b := range p.blocks {
		for _, l := range languages {
			require.False(t, b.language == l && !b.taken, "%s: no test runs the block of %s under %q", p.path, l, b.heading)
		}
	}
}
