package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// waits are packages that a core must not import: they wait, tell the time, do I/O or share memory.
var waits = []string{
	"context", "sync", "sync/atomic", "log", "log/slog", "net", "net/http", "os", "os/exec", "os/signal", "io", "bufio", "database/sql",
	"database/sql/driver", "math/rand", "math/rand/v2", "crypto/rand",
}

// clocks are the names of package time that read the clock or wait for it.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// TestCores checks that the cores of the machines are values: they are told what happened and when, and answer with what to
// do. So every order of events can be tried.
func TestCores(t *testing.T) {
	t.Parallel()
	cores := 0
	require.NoError(t, filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git" || d.Name() == "node_modules") {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if d.IsDir() || filepath.Base(filepath.Dir(path)) != "core" || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		cores++
		found, err := impure(path, nil)
		require.NoError(t, err)
		require.Empty(t, found)
		return nil
	}))
	require.NotZero(t, cores, "there is no package named core")
}

// impure lists what a file of a core must not have. src is its text, or nil to read it.
func impure(path string, src any) (found []string, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, src, 0)
	if err != nil {
		return nil, err
	}
	add := func(n ast.Node, what string) { found = append(found, files.Position(n.Pos()).String()+": "+what) }
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		database := strings.Contains(imported, "/pgx") || strings.Contains(imported, "lib/pq") ||
			strings.HasPrefix(imported, module+"internal/postgres/") &&
				imported != module+"internal/postgres/topiclane" // a hash
		if slices.Contains(waits, imported) || database {
			add(spec, "imports "+imported)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			add(n, "starts a goroutine")
		case *ast.ChanType:
			add(n, "has a channel")
		case *ast.SelectStmt:
			add(n, "selects")
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
				add(n, "uses time."+n.Sel.Name)
			}
		}
		return true
	})
	return found, nil
}

// TestImpure is the test of TestCores.
func TestImpure(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`import "context"`:                          `imports context`,
		`import "log/slog"`:                         `imports log/slog`,
		`import "github.com/jackc/pgx/v5"`:          `imports github.com/jackc/pgx/v5`,
		`import "time"; var _ = time.Now()`:         `uses time.Now`,
		`import "time"; func f() { time.Sleep(1) }`: `uses time.Sleep`,
		`func f() { go f() }`:                       `starts a goroutine`,
		`var c chan int`:                            `has a channel`,
		`func f() { select {} }`:                    `selects`,
	} {
		found, err := impure("core.go", "package core; "+text)
		require.NoError(t, err)
		require.Len(t, found, 1, text)
		require.True(t, strings.HasSuffix(found[0], want), found[0])
	}
	found, err := impure("core.go", `package core; import "time"; var _ = time.Second; func f(t time.Time) bool { return t.IsZero() }`)
	require.NoError(t, err)
	require.Empty(t, found)
}
