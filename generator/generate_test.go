package generator_test

import (
	"go/build"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
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
	require.Len(t, files, 3)
	for _, f := range files {
		require.Nil(t, f.Stub)
		require.Contains(t, string(f.Content), "\n// Source: my events.yaml, ")
		require.NotContains(t, string(f.Content), "somewhere")
	}
}

// TestGenerateDeterministic renders random sources twice, on one processor and on two.
func TestGenerateDeterministic(t *testing.T) { //nolint:paralleltest // sets GOMAXPROCS
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	rapid.Check(t, func(rt *rapid.T) {
		source := []byte(randomSource(rt))
		runtime.GOMAXPROCS(1)
		one, err := generator.Generate(source, generator.Options{})
		require.NoError(rt, err, string(source))
		runtime.GOMAXPROCS(2)
		two, err := generator.Generate(source, generator.Options{})
		require.NoError(rt, err)
		require.Equal(rt, one, two)
	})
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
