package generator_test

import (
	"bytes"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/internal/testing/randomyaml"
)

// exportData maps the packages that generated code may import, and their imports, to compiled export data.
var exportData = sync.OnceValues(func() (map[string]string, error) {
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, name := range [...]string{
		"outbox", "eventkey", "operation", "outboxfake", "queue", "listener", "publish", "consume", "payload",
	} {
		args = append(args, "github.com/outboxgen/outboxgen/"+name)
	}
	cmd := exec.Command("go", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, errors.New(stderr.String()))
	}
	files := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[name] = file
	}
	return files, nil
})

// imports is shared by all checks of the process, so that each package is read once.
var imports = sync.OnceValues(func() (types.Importer, error) {
	files, err := exportData()
	if err != nil {
		return nil, err
	}
	lookup := func(name string) (io.ReadCloser, error) { return os.Open(files[name]) }
	return importer.ForCompiler(token.NewFileSet(), "gc", lookup), nil
})

var importing sync.Mutex // the importer is not safe for concurrent use

// typeCheck type-checks files, with one package per folder.
func typeCheck(t require.TestingT, files []generator.File) {
	packages := make(map[string][]generator.File)
	for _, f := range files {
		packages[path.Dir(f.Name)] = append(packages[path.Dir(f.Name)], f)
	}
	for _, files := range packages {
		typeCheckPackage(t, files)
	}
}

func typeCheckPackage(t require.TestingT, files []generator.File) {
	from, err := imports()
	require.NoError(t, err)
	fset := token.NewFileSet()
	parsed := make([]*ast.File, 0, len(files))
	names := make(map[string]bool)
	for _, f := range files {
		require.NotContains(t, names, f.Name, "two files have one name")
		names[f.Name] = true
		file, err := parser.ParseFile(fset, f.Name, f.Content, parser.SkipObjectResolution)
		require.NoError(t, err, string(f.Content))
		parsed = append(parsed, file)
	}
	importing.Lock()
	defer importing.Unlock()
	conf := types.Config{Importer: from}
	_, err = conf.Check("generated", fset, parsed, nil)
	require.NoError(t, err)
}

func TestRandomSourcesTypeCheck(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	_, err := imports()
	require.NoError(t, err)
	rapid.Check(t, func(rt *rapid.T) {
		source := randomyaml.Source(rt)
		files, err := generator.Generate([]byte(source), generator.Options{})
		require.NoError(rt, err, source)
		typeCheck(rt, files)
	})
}

// TestTypeCheckCanFail shows that typeCheck finds type errors.
func TestTypeCheckCanFail(t *testing.T) {
	t.Parallel()
	files := generate(t, minichat(t), generator.Options{})
	for i, f := range files {
		files[i].Content = bytes.Replace(f.Content, []byte("uuid.UUID"), []byte("uuid.Nothing"), 1)
	}
	var failed failures
	func() {
		defer func() { _ = recover() }()
		typeCheck(&failed, files)
	}()
	require.Positive(t, failed)
}

// failures counts failures, and ends the check as a test would.
type failures int

func (f *failures) Errorf(string, ...any) { *f++ }
func (f *failures) FailNow()              { panic("failed") }

// FuzzGenerate checks the promise of the generator: findings, or Go that type-checks.
func FuzzGenerate(f *testing.F) {
	for _, name := range glob(f, "testdata/*/outbox.yaml") {
		source, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(source)
	}
	f.Fuzz(func(t *testing.T, source []byte) {
		files, err := generator.Generate(source, generator.Options{})
		if err != nil {
			var findings diag.List
			require.ErrorAs(t, err, &findings)
			require.True(t, findings.HasErrors())
			return
		}
		typeCheck(t, files)
	})
}
