package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestTutorial does what docs/start/tutorial.md says, in an empty folder with a real PostgreSQL, with this checkout instead of a
// release: it takes the requirements of this module, and the database is there. TestRehearsal does it word for word.
func TestTutorial(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	dir := t.TempDir()
	m := module{t, dir}
	m.write("shop.mod", requirements(t, "example.com/shop"))
	sums, err := os.ReadFile("../go.sum")
	require.NoError(t, err)
	m.write("shop.sum", string(sums))
	replaced := strings.NewReplacer(
		"go get -tool github.com/outboxgen/outboxgen/cmd/outboxgen@latest", "cp ../shop.mod go.mod && cp ../shop.sum go.sum",
		"go mod tidy", "",
		"createdb shop", "",
		"export DATABASE_URL=postgres://localhost/shop", "",
	)
	followTutorial(t, dir, environment("DATABASE_URL="+pgtest.Empty(t)), replaced.Replace)
}

// followTutorial writes each file of docs/start/tutorial.md, runs each command, after replace has changed it, and compares the
// output with what the page shows. "..." stands for anything within a line, and alone for any lines. As in a terminal, a
// command keeps the folder and the variables of those before it.
func followTutorial(t *testing.T, dir string, env []string, replace func(string) string) {
	t.Helper()
	sh, last, steps := shell{t, dir, env}, "", 0
	for _, b := range read(t, "docs/start/tutorial.md") {
		name, file := b.comments["file"]
		_, output := b.comments["output"]
		_, skipped := b.comments["not run"]
		switch {
		case skipped:
		case file:
			module{t, sh.folder()}.write(name, b.text)
		case output:
			want := `\A`
			for line := range strings.Lines(b.text) {
				if line = strings.TrimSpace(line); line == "..." {
					want += `(.*\n)*`
					continue
				}
				line = strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, `.*`)
				want += ` *` + regexp.MustCompile(` +`).ReplaceAllString(line, ` +`) + ` *\n`
			}
			require.Regexp(t, want+`\z`, last, "%s", b)
		case b.language == "sh":
			steps++
			last = downloading.ReplaceAllString(sh.run(replace(b.text), b.String()), "")
			t.Logf("%s\n%s", b.text, last)
		}
	}
	require.Greater(t, steps, 10)
}

// downloading are the lines that the go command prints on a machine with an empty module cache.
var downloading = regexp.MustCompile(`(?m)^go: downloading .*\n`)

// shell runs scripts as a terminal does. It keeps its state in the folder in which it starts.
type shell struct {
	t   *testing.T
	dir string
	env []string
}

// run runs a script in the folder and with the variables of the one before, and returns what it prints.
func (s shell) run(script, what string) string {
	s.t.Helper()
	state := filepath.Join(s.dir, ".state")
	script = "set -eo pipefail\nif [ -e " + state + " ]; then . " + state + "; fi\n" + script +
		"\n{ export -p; echo cd \"'$PWD'\"; } > " + state + "\n"
	cmd := exec.CommandContext(s.t.Context(), "bash", "-c", script)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	require.NoError(s.t, err, "%s:\n%s\n%s", what, script, out)
	return string(out)
}

// folder returns the folder in which the shell is.
func (s shell) folder() string {
	s.t.Helper()
	return strings.TrimSpace(s.run("pwd", "pwd"))
}
