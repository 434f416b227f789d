package generator_test

import (
	"go/build"
	"go/format"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/internal/testing/randomyaml"
	"github.com/outboxgen/outboxgen/templates"
)

// buildContexts returns platforms that share no GOOS and no GOARCH.
func buildContexts() []build.Context {
	linux, windows := build.Default, build.Default
	linux.GOOS, linux.GOARCH = "linux", "amd64"
	windows.GOOS, windows.GOARCH = "windows", "arm64"
	return []build.Context{linux, windows}
}

func TestGenerateFindings(t *testing.T) {
	t.Parallel()
	files, err := generator.Generate([]byte("version: \"1\"\npackage: func\n"), generator.Options{Source: "dir/a.yaml"})
	require.Nil(t, files)
	var findings diag.List
	require.ErrorAs(t, err, &findings)
	require.GreaterOrEqual(t, len(findings), 2)
	require.Equal(t, "dir/a.yaml", findings[0].Pos.File)
}

func TestGenerateQuotesBaseName(t *testing.T) {
	t.Parallel()
	files := generate(t, minichat(t), generator.Options{Source: "/somewhere/else/my events.yaml", Stubs: generator.StubsNone})
	require.Len(t, files, 5)
	for _, f := range files {
		require.Nil(t, f.Stub)
		require.Contains(t, string(f.Content), "\n// Source: my events.yaml, ")
		require.NotContains(t, string(f.Content), "somewhere")
	}
}

// TestGenerateDeterministic renders 1,000 random sources on one processor and on two, and fewer with the race detector.
func TestGenerateDeterministic(t *testing.T) { // sets GOMAXPROCS
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	sources := rapid.Custom(randomyaml.Source)
	for seed := range campaign.Of(200, 1000) / raceFactor {
		source := []byte(sources.Example(seed))
		runtime.GOMAXPROCS(1)
		one := generate(t, source, generator.Options{})
		runtime.GOMAXPROCS(2)
		require.Equal(t, one, generate(t, source, generator.Options{}))
	}
}

// TestStarter generates from what init writes.
func TestStarter(t *testing.T) {
	t.Parallel()
	data := templates.Starter{Package: "events", Source: "outbox.yaml"}
	source, err := templates.StarterYAML(data)
	require.NoError(t, err)
	beside, err := templates.StarterGo(data)
	require.NoError(t, err)
	require.Contains(t, string(beside), "\n//go:generate go tool outboxgen generate\n")
	files := append(generate(t, source, generator.Options{}), generator.File{Name: "generate.go", Content: beside})
	requireFormatted(t, files)
	typeCheck(t, files)
}

// requireFormatted checks that gofmt would change nothing.
func requireFormatted(t *testing.T, files []generator.File) {
	t.Helper()
	for _, f := range files {
		want, err := format.Source(f.Content)
		require.NoError(t, err, f.Name)
		require.Equal(t, string(want), string(f.Content), f.Name)
	}
}

func minichat(t testing.TB) []byte {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("testdata", "minichat", "outbox.yaml"))
	require.NoError(t, err)
	return source
}

func generate(t testing.TB, source []byte, o generator.Options) []generator.File {
	t.Helper()
	files, err := generator.Generate(source, o)
	require.NoError(t, err)
	return files
}
