package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChangesOfGo: the woven file is Go of the same types, and its mutants are the conditions, their parts and their
// bounds.
func TestChangesOfGo(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][]string{
		"if a < b && (ok || b == 3) { a++ }": {
			"a < b [removed]", "a < b [< -> <=]", "(ok || b == 3) [removed]", "ok [removed]", "b == 3 [removed]",
		},
		"if a < b { b++ }":              {"a < b [turned]", "a < b [< -> <=]"},
		"for a > 7 { break }":           {"a > 7 [never]", "a > 7 [turned]", "a > 7 [> -> >=]"},
		"for ok { break }":              {"ok [never]"},
		"for ok && a > 7 { break }":     {"ok [removed]", "a > 7 [removed]", "a > 7 [> -> >=]"},
		"switch { case ok: a++ }":       {"ok [turned]"},
		"if !ok { a++ }":                {"!ok [turned]"},
		"ok = a != b":                   {"a != b [turned]"},
		"if a < b { a = b }":            {"a < b [turned]"},
		"if a < b { b = a }":            {"a < b [turned]"},
		"if a < b { b = 3 }":            {"a < b [turned]", "a < b [< -> <=]"},
		"if cap(list) < a { a++ }":      {"cap(list) < a [turned]"},
		"if d > e { a++ }":              {"d > e [turned]"},
		"if d > 7 { a++ }":              {"d > 7 [turned]"},
		"if d > 0 { a++ }":              {"d > 0 [turned]", "d > 0 [> -> >=]"},
		"if x.Compare(y) > 0 { y = x }": {"x.Compare(y) > 0 [turned]"},
		"if x.Compare(y) > 0 { a++ }":   {"x.Compare(y) > 0 [turned]", "x.Compare(y) > 0 [> -> >=]"},
		"a, b = b, a; f(1, 2, true)":    nil,
	} {
		src := "package p\n\nimport \"time\"\n\nvar (\n\td, e time.Duration\n\tlist []int\n\tx, y place\n)\n\ntype place int\n\n" +
			"func (p place) Compare(o place) int { return int(p - o) }\n\nfunc f(a, b int, ok bool) int {\n\t" +
			body + "\n\treturn a\n}\n"
		woven, mutants := weaveText(t, src)
		ids := make([]string, 0, len(mutants))
		for _, m := range mutants {
			require.Equal(t, "p", m.goPackage)
			ids = append(ids, strings.TrimPrefix(m.id, "p f: "))
		}
		require.ElementsMatch(t, want, ids, body)
		_, err := checkText(woven + "\nfunc mutantOn(uint32) bool { return false }\n")
		require.NoError(t, err, woven)
	}
}

func weaveText(t *testing.T, src string) (string, []mutant) {
	t.Helper()
	w, err := checkText(src)
	require.NoError(t, err, src)
	return string(w.woven()), w.mutants
}

// checkText checks the types of a file, and makes its mutants.
func checkText(src string) (*weaver, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	cfg := types.Config{Importer: onlyDuration{}}
	if _, err := cfg.Check("p", set, []*ast.File{file}, info); err != nil {
		return nil, err
	}
	w := &weaver{set: set, info: info, src: []byte(src), dir: "p", ids: map[string]int{}}
	w.file(file)
	return w, nil
}

// onlyDuration imports a package time that has the type Duration and nothing else.
type onlyDuration struct{}

func (onlyDuration) Import(string) (*types.Package, error) {
	pkg := types.NewPackage("time", "time")
	name := types.NewTypeName(token.NoPos, pkg, "Duration", nil)
	types.NewNamed(name, types.Typ[types.Int64], nil)
	pkg.Scope().Insert(name)
	pkg.MarkComplete()
	return pkg, nil
}

// TestFoldersOfTestsExist: each folder that is named has tests. One that was moved would kill nothing, and nobody would
// notice.
func TestFoldersOfTestsExist(t *testing.T) {
	t.Parallel()
	folders := append([]string{}, sqlPackages...)
	for _, p := range goPackages {
		folders = append(folders, p.tests()...)
	}
	for _, dir := range folders {
		files, err := filepath.Glob(filepath.Join("../../..", dir, "*_test.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, "%s has no tests", dir)
	}
	for name := range leftOut {
		dir, test, _ := strings.Cut(name, ".")
		files, err := filepath.Glob(filepath.Join("../../..", dir, "*_test.go"))
		require.NoError(t, err)
		var all strings.Builder
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			all.Write(text)
		}
		require.Contains(t, all.String(), "func "+test+"(", "leftOut names a test that does not exist")
	}
}

// TestSimulationsAreNamed: each package that decides and has a simulation names it.
func TestSimulationsAreNamed(t *testing.T) {
	t.Parallel()
	for _, p := range goPackages {
		below, err := filepath.Glob(filepath.Join("../../..", p.dir, "*", "*_test.go"))
		require.NoError(t, err)
		for _, file := range below {
			dir, err := filepath.Rel("../../..", filepath.Dir(file))
			require.NoError(t, err)
			require.Contains(t, p.tests(), filepath.ToSlash(dir), "the tests of a folder below %s kill nothing", p.dir)
		}
	}
}
