package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/pgtest"
)

// TestTutorial does what docs/tutorial.md says, in an empty folder with a real PostgreSQL: it writes each file, runs each
// command, and compares the output with what the page shows. "..." stands for anything within a line, and alone for any lines.
// Three commands are replaced: nothing is downloaded and the database is there.
func TestTutorial(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	url := pgtest.Empty(t)
	dir := t.TempDir()
	m := module{t, dir}
	m.write("shop.mod", requirements(t, "example.com/shop"))
	sums, err := os.ReadFile("go.sum")
	require.NoError(t, err)
	m.write("shop.sum", string(sums))
	replaced := strings.NewReplacer(
		"go get -tool github.com/outboxgen/outboxgen/cmd/outboxgen@latest", "cp ../shop.mod go.mod && cp ../shop.sum go.sum",
		"go mod tidy", "",
		"createdb shop", "",
		"export DATABASE_URL=postgres://localhost/shop", "",
	)
	at, last, steps := ".", "", 0
	for _, b := range read(t, "docs/tutorial.md") {
		name, file := b.comments["file"]
		_, output := b.comments["output"]
		_, skipped := b.comments["not run"]
		switch {
		case skipped:
		case file:
			module{t, filepath.Join(dir, at)}.write(name, b.text)
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
			script := "set -eo pipefail\ncd " + at + "\n" + replaced.Replace(b.text) + "\npwd > " + filepath.Join(dir, "pwd") + "\n"
			cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
			cmd.Dir, cmd.Env = dir, environment("DATABASE_URL="+url)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s:\n%s\n%s", b, b.text, out)
			pwd, err := os.ReadFile(filepath.Join(dir, "pwd"))
			require.NoError(t, err)
			at, err = filepath.Rel(dir, strings.TrimSpace(string(pwd)))
			require.NoError(t, err)
			last = string(out)
			t.Logf("%s\n%s", b.text, out)
		}
	}
	require.Greater(t, steps, 10)
}
