package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// otherKeys are log keys that have another name here. One thing has one name, so that a search finds all lines about it.
var otherKeys = map[string]string{
	"group": "consumer_group", "consumer": "consumer_group", "message": `event_id, by slog.Any("", event)`, "event": `event_id, by slog.Any("", event)`,
	"id": "event_id", "err": "error", "cause": "error", "tenant": "tenant_id", "attempts": "attempt", "ns": "namespace", "duration": "after or ran",
}

var snakeCase = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// TestLogKeys: what is logged in services has the same key in each line.
func TestLogKeys(t *testing.T) {
	t.Parallel()
	keys := make(map[string]bool)
	for _, folder := range services {
		err := filepath.WalkDir(filepath.Join("../../..", folder), func(path string, d os.DirEntry, err error) error {
			name := strings.TrimPrefix(filepath.ToSlash(path), "../../../")
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || toolFolders.MatchString(name) {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			for _, key := range logKeys(file) {
				keys[key] = true
				require.NotContains(t, otherKeys, key, "%s logs %q: say %s", name, key, otherKeys[key])
				require.Regexp(t, snakeCase, key, "%s", name)
			}
			return nil
		})
		require.NoError(t, err)
	}
	for _, key := range []string{"error", "event_id", "consumer_group", "place", "servers"} {
		require.Contains(t, keys, key, "is found in calls, in attributes and in lists of them")
	}
}

// logKeys returns the keys of the attributes that a file logs: those of calls of a logger and of package slog, and those of lists.
func logKeys(file *ast.File) (keys []string) {
	pairs := func(from []ast.Expr) {
		for i := 0; i < len(from); i += 2 {
			switch e := from[i].(type) {
			case *ast.BasicLit:
				if key, err := strconv.Unquote(e.Value); err == nil && key != "" {
					keys = append(keys, key)
				}
			case *ast.CallExpr: // a slog.Attr is one argument
				i--
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit: // attrs := []any{"target", t.Name}
			if list, ok := n.Type.(*ast.ArrayType); ok && len(n.Elts) > 1 {
				if of, ok := list.Elt.(*ast.Ident); ok && of.Name == "any" && attributes(n) {
					pairs(n.Elts)
				}
			}
		case *ast.CallExpr:
			call, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, isLogger := len(n.Args), logger(call.X)
			if made, ok := call.X.(*ast.CallExpr); ok { // usercode.Logger(log).With(...)
				isLogger = logger(made.Fun)
			}
			switch pkg, _ := call.X.(*ast.Ident); call.Sel.Name {
			case "String", "Int", "Int64", "Bool", "Duration", "Time", "Any":
				if pkg != nil && pkg.Name == "slog" {
					pairs(n.Args[:1])
				}
			case "Debug", "Info", "Warn", "Error":
				from = 1
			case "With":
				from = 0
			case "Log":
				from = 3
			}
			if isLogger && from < len(n.Args) {
				pairs(n.Args[from:])
			}
		}
		return true
	})
	return keys
}

// attributes reports whether a list of values looks like one of keys and values.
func attributes(list *ast.CompositeLit) bool {
	for i, e := range list.Elts {
		lit, ok := e.(*ast.BasicLit)
		if i%2 == 0 && (!ok || lit.Kind != token.STRING || !snakeCase.MatchString(strings.Trim(lit.Value, `"`))) {
			_, attr := e.(*ast.CallExpr)
			return attr && i > 0
		}
	}
	return true
}
