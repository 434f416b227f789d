package generator_test

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

var update = flag.Bool("update", false, "record want/ of every case that generates")

// goldenCases returns the folders of testdata that generate. Folders with a want/stderr.txt are findings and belong to
// package model.
func goldenCases(t *testing.T) []string {
	t.Helper()
	sources, err := filepath.Glob("testdata/*/outbox.yaml")
	require.NoError(t, err)
	var cases []string
	for _, source := range sources {
		want := filepath.Join(filepath.Dir(source), "want")
		if _, err := os.Stat(filepath.Join(want, "stderr.txt")); err != nil {
			cases = append(cases, filepath.Base(filepath.Dir(source)))
		} else {
			require.Empty(t, goFiles(t, want), "%s has findings: nothing compares its files", source)
		}
	}
	require.NotEmpty(t, cases)
	return cases
}

// TestGolden compares what every case generates with its want folder, stubs included.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, name := range goldenCases(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, err := os.ReadFile(filepath.Join("testdata", name, "outbox.yaml"))
			require.NoError(t, err)
			lock, err := os.ReadFile(filepath.Join("testdata", name, "outbox.lock.yaml"))
			if !errors.Is(err, fs.ErrNotExist) {
				require.NoError(t, err)
			}
			files, err := generator.Generate(source, generator.Options{Lock: lock})
			require.NoError(t, err)
			requireFormatted(t, files)
			want := filepath.Join("testdata", name, "want")
			if *update {
				record(t, want, files)
			}
			names := make([]string, 0, len(files))
			for _, f := range files {
				names = append(names, f.Name)
				content, err := os.ReadFile(filepath.Join(want, f.Name))
				require.NoError(t, err)
				require.Equal(t, string(content), string(f.Content), f.Name)
			}
			require.Equal(t, goFiles(t, want), names)
		})
	}
}

// TestLineEndsDoNotMatter compares, for every case, what comes from a file with CRLF with what comes from the one with LF: the
// files, and the findings with their positions.
func TestLineEndsDoNotMatter(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("testdata/*/outbox.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	windows := func(text []byte) []byte {
		if text == nil {
			return nil // there is no lock
		}
		return bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))
	}
	for _, name := range sources {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		lock, err := os.ReadFile(generator.LockName(name))
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
		want, findings := generator.Generate(source, generator.Options{Lock: lock})
		got, same := generator.Generate(windows(source), generator.Options{Lock: windows(lock)})
		require.Equal(t, want, got, name)
		require.Equal(t, findings, same, name)
		for _, f := range got {
			require.NotContains(t, string(f.Content), "\r", "%s: %s", name, f.Name)
		}
	}
}

func record(t *testing.T, dir string, files []generator.File) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, name := range goFiles(t, dir) {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	for _, f := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, f.Name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), f.Content, 0o644))
	}
}

// goldenTest ends the names of tests that are next to goldens and use them. goldenOwn is the name of code that generated
// code needs from its user.
const (
	goldenTest = "_test.go"
	goldenOwn  = "upcast.go"
)

// goFiles returns the goldens in dir, those of a consumer package included, sorted.
func goFiles(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	for _, pattern := range []string{"*.go", "*/*.go"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		for _, path := range paths {
			if !strings.HasSuffix(path, goldenTest) && filepath.Base(path) != goldenOwn {
				name, err := filepath.Rel(dir, path)
				require.NoError(t, err)
				names = append(names, filepath.ToSlash(name))
			}
		}
	}
	slices.Sort(names)
	return names
}

// TestGoldensBuild compiles the goldens, and runs the tests next to them. It names them, because ./... skips testdata.
// `make verify` vets them.
func TestGoldensBuild(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	var packages []string
	for _, name := range goldenCases(t) {
		packages = append(packages, "./testdata/"+name+"/want/...")
	}
	out, err := exec.Command("go", append([]string{"test", "-vet=off"}, packages...)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestGoldenFileNames checks that go build includes every golden on every platform. TestGolden, which lists the folder
// without tests, shows that no stub has the name of a test.
func TestGoldenFileNames(t *testing.T) {
	t.Parallel()
	for _, name := range goldenCases(t) {
		dir := filepath.Join("testdata", name, "want")
		for _, file := range goFiles(t, dir) {
			for _, ctx := range buildContexts() {
				match, err := ctx.MatchFile(filepath.Join(dir, filepath.Dir(file)), filepath.Base(file))
				require.NoError(t, err)
				require.True(t, match, "%s on %s/%s", file, ctx.GOOS, ctx.GOARCH)
			}
		}
	}
}

// TestConsumerPackagesAreFreeOfTheProducer: a consumer package depends on nothing of the producer, with any fields in its
// payloads.
func TestConsumerPackagesAreFreeOfTheProducer(t *testing.T) {
	t.Parallel()
	const module = "github.com/outboxgen/outboxgen/"
	deps := func(folder string) []string {
		out, err := exec.Command("go", "list", "-deps", "./"+folder).CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.Fields(string(out))
	}
	consumers := make(map[string]bool) // folders
	for _, name := range goldenCases(t) {
		for _, file := range goFiles(t, filepath.Join("testdata", name, "want")) {
			if folder := filepath.Dir(file); folder != "." {
				consumers[filepath.ToSlash(filepath.Join("testdata", name, "want", folder))] = true
			}
		}
	}
	require.Contains(t, consumers, "testdata/publish/want/userevents")
	require.Contains(t, consumers, "testdata/consumer-types/want/partevents", "every kind of field")
	require.Contains(t, deps("testdata/publish/want"), module+"outbox", "the test sees what it looks for")
	for folder := range consumers {
		needed := deps(folder)
		require.Contains(t, needed, module+"consume")
		for _, path := range needed {
			for _, producer := range []string{"outbox", "outboxtest", "publish", "migrate"} {
				require.False(t, path == module+producer || strings.HasPrefix(path, module+producer+"/"), "%s imports %s", folder, path)
			}
		}
	}
}
