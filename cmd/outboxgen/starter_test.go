package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// newModule makes a module as a user has one, which uses this checkout, and returns its folder and a function that runs a
// command in it.
func newModule(t *testing.T) (dir string, run func(name string, args ...string) string) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	dir = t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644))
	requirements, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	_, versions, ok := strings.Cut(string(requirements), "\nrequire (")
	require.True(t, ok)
	const module = "github.com/outboxgen/outboxgen"
	mod := "module example.com/app\n\ngo 1.26\n\ntool " + module + "/cmd/outboxgen\n\nrequire " + module + " v0.0.0\n\nrequire (" + versions +
		"\nreplace " + module + " => " + root + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o644))
	return dir, func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		// Everything that it needs was downloaded to build this test.
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "GOSUMDB=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
		return string(out)
	}
}

// TestReadmeBuilds: the YAML of the README generates, and its Go compiles against the result.
func TestReadmeBuilds(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	block := func(language string) []byte {
		_, rest, ok := strings.Cut(string(readme), "\n```"+language+"\n")
		require.True(t, ok, "README.md has no %s", language)
		text, _, ok := strings.Cut(rest, "\n```\n")
		require.True(t, ok)
		return []byte(text + "\n")
	}
	dir, run := newModule(t)
	run("go", "tool", "outboxgen", "init", "events")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "events", "outbox.yaml"), block("yaml"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "app.go"), block("go"), 0o644))
	run("go", "generate", "./events")
	run("go", "vet", "./...")
}

// TestStarterBuilds follows the README in a new module: init, go get -tool, go generate. The generated Go must build and
// pass vet.
func TestStarterBuilds(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	dir, run := newModule(t)
	require.NotContains(t, run("go", "tool", "outboxgen", "init", "events"), "go get -tool")
	require.Contains(t, run("go", "generate", "./events"), "create events/mini_chat.outbox.go", "paths are relative to the root of the module")
	run("go", "vet", "./...")
	require.Empty(t, run("go", "tool", "outboxgen", "generate", "--config", "events/outbox.yaml", "--check"))

	// go generate ends with an error if a file that it has listed is gone when it comes to that file.
	config := filepath.Join(dir, "events", "outbox.yaml")
	yaml, err := os.ReadFile(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, []byte(strings.ReplaceAll(string(yaml), "turn_finalized", "turn_ended")), 0o644))
	require.Contains(t, run("go", "generate", "./events"), "remove events/mini_chat.turn_finalized.outbox.go")
}
