package generator_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

// program is a Go file that uses generated code, with the errors that it says it has. A line with an error ends with
// "// error: " and a part of the message of the compiler.
type program struct {
	fset   *token.FileSet
	file   *ast.File
	errors map[int]string // by line
}

func readProgram(t *testing.T, name string) program {
	t.Helper()
	p := program{fset: token.NewFileSet(), errors: make(map[int]string)}
	var err error
	p.file, err = parser.ParseFile(p.fset, name, nil, parser.SkipObjectResolution|parser.ParseComments)
	require.NoError(t, err)
	for _, group := range p.file.Comments {
		for _, c := range group.List {
			if text, ok := strings.CutPrefix(c.Text, "// error: "); ok {
				p.errors[p.fset.Position(c.Pos()).Line] = text
			}
		}
	}
	return p
}

// importerOf imports one package of generated code, and everything else as exportData has it.
type importerOf struct {
	generated *types.Package
	types.Importer
}

func (i importerOf) Import(name string) (*types.Package, error) {
	if name == i.generated.Path() {
		return i.generated, nil
	}
	return i.Importer.Import(name)
}

// TestWrongProgramsDoNotCompile type-checks a corpus of programs that use operations or batches wrongly: each has exactly the
// errors of the compiler that it says it has. The one right program has none.
func TestWrongProgramsDoNotCompile(t *testing.T) {
	t.Parallel()
	for name, least := range map[string]int{"operation-programs": 20, "batches": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkPrograms(t, "testdata/"+name, least)
		})
	}
}

// checkPrograms type-checks the programs of a case, which are more than least.
func checkPrograms(t *testing.T, folder string, least int) {
	t.Helper()
	from, err := imports()
	require.NoError(t, err)
	source, err := os.ReadFile(folder + "/outbox.yaml")
	require.NoError(t, err)
	files := generate(t, source, generator.Options{})
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, f := range files {
		file, err := parser.ParseFile(fset, f.Name, f.Content, parser.SkipObjectResolution)
		require.NoError(t, err)
		parsed = append(parsed, file)
	}
	importing.Lock()
	defer importing.Unlock()
	conf := types.Config{Importer: from}
	events, err := conf.Check("example.com/events", fset, parsed, nil)
	require.NoError(t, err)

	programs, err := filepath.Glob(folder + "/programs/*.go")
	require.NoError(t, err)
	require.Greater(t, len(programs), least)
	for _, name := range programs {
		p := readProgram(t, name)
		require.Equal(t, path.Base(filepath.ToSlash(name)) != "right.go", len(p.errors) > 0, name)
		found := make(map[int]string)
		conf := types.Config{Importer: importerOf{events, from}, Error: func(err error) {
			failure := err.(types.Error)
			found[p.fset.Position(failure.Pos).Line] += failure.Msg + "\n"
		}}
		_, _ = conf.Check("program", p.fset, []*ast.File{p.file}, nil)
		for line, want := range p.errors {
			require.Contains(t, found[line], want, "%s:%d", name, line)
		}
		require.Len(t, found, len(p.errors), "%s: %v", name, found)
	}
}
