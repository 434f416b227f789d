// Package coretest keeps the tables of docs/inside/states.md equal to what the cores do.
package coretest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the tables of docs/inside/states.md")

// Row is what a core does with one event in one state.
type Row struct {
	State, Event string
	Commands     []string // in order
	Next         string   // the next state
}

// RequireStates requires that the section of docs/inside/states.md between the lines "<!-- states: name -->" and
// "<!-- /states -->" is the table of rows. With -update it writes the table there instead.
func RequireStates(t testing.TB, name string, rows []Row) {
	t.Helper()
	path := page(t)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	begin, end := "<!-- states: "+name+" -->\n", "<!-- /states -->"
	head, rest, found := strings.Cut(string(text), begin)
	require.True(t, found, "%s has no line %q", path, strings.TrimSpace(begin))
	table, tail, found := strings.Cut(rest, end)
	require.True(t, found, "%s has no line %q after %q", path, end, strings.TrimSpace(begin))
	want := "\n" + Table(rows) + "\n"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644))
		return
	}
	require.Equal(t, want, table, "the table of %s in %s differs from what it does: run the test with -update", name, path)
}

// Table is rows as a table in Markdown.
func Table(rows []Row) string {
	var b strings.Builder
	b.WriteString("| state | event | commands | next state |\n| --- | --- | --- | --- |\n")
	for _, r := range rows {
		commands := "-"
		if len(r.Commands) > 0 {
			commands = strings.Join(r.Commands, ", ")
		}
		b.WriteString("| " + strings.Join([]string{r.State, r.Event, commands, r.Next}, " | ") + " |\n")
	}
	return b.String()
}

// page is the path of docs/inside/states.md.
func page(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		path := filepath.Join(dir, "docs", "inside", "states.md")
		if _, err := os.Stat(path); err == nil {
			return path
		}
		up := filepath.Dir(dir)
		require.NotEqual(t, dir, up, "there is no docs/inside/states.md above the test")
		dir = up
	}
}
