package editor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
)

func optionsOf(path string) generator.Options { return generator.Options{Source: path} }

// open returns a document, and the place of the | in it.
func open(t testing.TB, src string) (*Document, Position) {
	t.Helper()
	before, after, found := strings.Cut(src, "|")
	require.True(t, found, "the text has no cursor")
	var f File
	d := f.Open(before+after, optionsOf("outbox.yaml"))
	return d, d.position(len(before))
}

// edited returns a text with edits made. They do not overlap.
func edited(src string, edits []Edit) string {
	for i := len(edits) - 1; i >= 0; i-- {
		for j := range i {
			if before(edits[i].Range.Start, edits[j].Range.Start) {
				edits[i], edits[j] = edits[j], edits[i]
			}
		}
		src = Apply(src, edits[i].Range, edits[i].NewText)
	}
	return src
}

func before(a, b Position) bool {
	return a.Line < b.Line || a.Line == b.Line && a.Character < b.Character
}

// The findings of every golden are those of validate. Each has a range that begins at its place. A fix removes the
// finding.
func TestFindingsAndFixesOfAllGoldens(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../testdata/*/want/stderr.txt")
	require.NoError(t, err)
	require.Greater(t, len(paths), 100)
	fixed := 0
	for _, path := range paths {
		dir := filepath.Dir(filepath.Dir(path))
		src, err := os.ReadFile(filepath.Join(dir, "outbox.yaml"))
		require.NoError(t, err)
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		o := optionsOf("outbox.yaml")
		if lock, err := os.ReadFile(filepath.Join(dir, "outbox.lock.yaml")); err == nil {
			o.Lock = lock
		}
		var f File
		d := f.Open(string(src), o)
		var l diag.List
		for _, found := range d.Findings() {
			l = append(l, found.Diagnostic)
			if found.Pos.File != "outbox.yaml" {
				continue
			}
			require.Equal(t, d.position(d.at(found.Pos)), found.Range.Start, "%s: %s", dir, found)
			require.False(t, before(found.Range.End, found.Range.Start), "%s: %s", dir, found)
			fixes := d.Fixes(found)
			if _, _, hinted := found.Suggestion(); hinted {
				require.NotEmpty(t, fixes, "%s: no fix for %s", dir, found)
			}
			for _, fix := range fixes {
				made := edited(string(src), fix.Edits)
				require.NotEqual(t, string(src), made, "%s: %s does nothing about %s", dir, fix.Title, found)
				var after File
				for _, left := range after.Open(made, o).Findings() {
					require.False(t, left.Pos.Line == found.Pos.Line && left.Rule == found.Rule && left.Message == found.Message,
						"%s: %s does not help against %s:\n%s", dir, fix.Title, found, made)
					require.NotEqual(t, diag.YAMLSyntax, left.Rule, "%s: %s for %s breaks the file:\n%s", dir, fix.Title, found, made)
				}
				fixed++
			}
		}
		require.Equal(t, string(want), l.Error()+"\n", dir)
	}
	require.Greater(t, fixed, 150)
}
