package check

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
)

// TestDockerfileBlocks does what the Dockerfiles of the pages say, without an engine for containers, in a module with
// the worker of `outboxgen init --worker`: the files of each COPY are there or are built, and the command that builds
// works. The program starts in the folder of that module, and needs no dynamic loader, which scratch does not have.
func TestDockerfileBlocks(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	blocks := all(t, "dockerfile")
	require.NotEmpty(t, blocks)
	m := newModule(t)
	for _, args := range []string{"init --worker events", "generate --config events/outbox.yaml"} {
		out, err := m.run("go", strings.Fields("run github.com/outboxgen/outboxgen/cmd/outboxgen "+args)...)
		require.NoError(t, err, out)
	}
	for _, b := range blocks {
		stage, program, entry := "", "", ""
		for line := range strings.Lines(b.text) {
			verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			words := strings.Fields(rest)
			switch verb {
			case "", "WORKDIR", "CMD":
			case "USER":
				require.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, rest, b)
			case "FROM":
				if len(words) == 3 {
					stage = words[2]
				}
			case "ENTRYPOINT":
				require.Regexp(t, `^\["/[a-z/]+"\]$`, rest, "%s: a shell would keep the signals", b)
				entry = strings.Trim(rest, `[]"`)
			case "COPY":
				if from, ok := strings.CutPrefix(words[0], "--from="); ok {
					require.Equal(t, stage, from, "%s: %s", b, line)
					require.Contains(t, []string{program, "/etc/ssl/certs/ca-certificates.crt"}, words[1], "%s: %s", b, line)
					require.True(t, words[1] != program || entry == "", "%s: %s", b, line)
					continue
				}
				for _, name := range words[:len(words)-1] {
					require.NoError(t, exists(filepath.Join(m.dir, name)), "%s: %s", b, line)
				}
			case "RUN":
				found := regexp.MustCompile(`^CGO_ENABLED=0 go build .*-o (\S+) `).FindStringSubmatch(rest)
				if found == nil {
					require.Equal(t, "go mod download", rest, "%s: the test has no network", b)
					continue
				}
				program = found[1]
				out, err := m.run("sh", "-c", strings.ReplaceAll(rest, program+" ", "./built "))
				require.NoError(t, err, "%s: %s%s", b, line, out)
			default:
				require.Fail(t, "an instruction that is not checked", "%s: %s", b, line)
			}
		}
		require.Equal(t, "/worker", entry, b)
		content, err := os.ReadFile(filepath.Join(m.dir, "built"))
		require.NoError(t, err)
		require.NotContains(t, string(content), "/ld-linux", "%s: the program is not static", b)
		out, err := m.run(filepath.Join(m.dir, "built"))
		require.Error(t, err)
		require.Contains(t, out, "usage: worker run")
	}
}

func exists(path string) error {
	_, err := os.Stat(path)
	return err
}
