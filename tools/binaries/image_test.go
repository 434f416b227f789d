package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestImageHasTheProgramOfTheArchive does what the Dockerfile says, without an engine for containers: the sources of
// each COPY exist, and the command that builds gives the same bytes as this program does. It then runs in a folder
// that has nothing else, as in the image.
func TestImageHasTheProgramOfTheArchive(t *testing.T) {
	if testing.Short() || runtime.GOOS == "windows" {
		t.Skip("slow, and needs a shell: left out by -short and on Windows")
	}
	text, err := os.ReadFile("../../Dockerfile")
	require.NoError(t, err)
	lines := strings.Split(regexp.MustCompile(`\\\n\s*`).ReplaceAllString(string(text), ""), "\n")
	root := checkoutOf(t)
	stage, stages, built, build, last := "", map[string]bool{}, map[string]bool{}, "", map[string]string{}
	for _, line := range lines {
		verb, rest, _ := strings.Cut(line, " ")
		words := strings.Fields(rest)
		switch verb {
		case "FROM":
			if stage, last = "", map[string]string{}; len(words) > 2 {
				stage = words[len(words)-1]
			}
			stages[stage] = true
		case "COPY":
			from, ok := strings.CutPrefix(words[0], "--from=")
			if ok {
				require.True(t, stages[from], line)
				there := built[words[1]] || words[1] == "/etc/ssl/certs/ca-certificates.crt" // golang has the certificates
				require.True(t, there, "%s: no command of the stage %s makes it", line, from)
				continue
			}
			for _, name := range words[:len(words)-1] {
				_, err := os.Stat(filepath.Join(root, name))
				require.NoError(t, err, line)
			}
		case "RUN":
			if m := regexp.MustCompile(` -o (\S+) `).FindStringSubmatch(rest); m != nil {
				build, built[m[1]] = rest, true
			}
		}
		last[verb] = rest
	}
	require.Equal(t, "scratch", last["FROM"])
	require.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, last["USER"], "Kubernetes knows only of a number that it is not root")
	require.Equal(t, `["/usr/local/bin/outboxgen"]`, last["ENTRYPOINT"])

	t.Setenv("SOURCE_DATE_EPOCH", "")
	src, err := inspect(root, "v0.1.0")
	require.NoError(t, err)
	want, err := src.build(t.TempDir(), "linux", "amd64")
	require.NoError(t, err)
	for line := range strings.Lines(string(read(t, "../../.dockerignore"))) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "/"); ok {
			require.NoError(t, os.RemoveAll(filepath.Join(root, name)))
		}
	}
	empty := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(build, " /out/", " "+empty+"/"))
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "TARGETOS=linux", "TARGETARCH=amd64", "VERSION=v0.1.0",
		"REVISION="+strings.Fields(src.stamp)[1], "CREATED="+src.time.Format(time.RFC3339))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	same := string(read(t, want)) == string(read(t, filepath.Join(empty, "outboxgen")))
	require.True(t, same, "the image has another program than the archive")
	require.NoError(t, os.Chmod(empty, 0o755))
	if cmd := inRoot(empty, "/outboxgen", "version"); cmd != nil {
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "outboxgen "+strings.Fields(src.stamp)[0]+" (commit ")
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return content
}
