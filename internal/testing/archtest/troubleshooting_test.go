package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// services are the folders whose code runs in the processes of users, or in the page that they look at.
var services = []string{
	"admin", "consume", "dashboard", "eventkey", "inbox", "internal", "listener", "migrate", "operation", "outbox",
	"outboxfake", "outboxtest", "payload", "publish", "queue", "sqltx", "telemetry", "worker",
}

// tools of services are not run by users.
var toolFolders = regexp.MustCompile(`^internal/(testing|tool/analyzers|postgres/schemadrift)/|/drivertest/|/publishtest/|/consumetest/|/promtest/|/testdata/`)

// TestTroubleshooting: docs/operate/troubleshooting.md has a row for each line that is logged at WARN or ERROR, and for each
// exported error that callers compare with, and for nothing else.
func TestTroubleshooting(t *testing.T) {
	t.Parallel()
	logged, exported := make(map[string]string), make(map[string]string)
	for _, folder := range services {
		err := filepath.WalkDir(filepath.Join("../../..", folder), func(path string, d os.DirEntry, err error) error {
			switch name := strings.TrimPrefix(filepath.ToSlash(path), "../../../"); {
			case os.IsNotExist(err): // not every branch has each of them
				return nil
			case err != nil:
				return err
			case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || toolFolders.MatchString(name):
				return nil
			default:
				file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
				if err != nil {
					return err
				}
				for _, text := range logLines(t, name, file) {
					logged[text] = name
				}
				if !strings.HasPrefix(name, "internal/") {
					for _, e := range exportedErrors(file) {
						exported[e] = name
					}
				}
				return nil
			}
		})
		require.NoError(t, err)
	}
	require.Greater(t, len(logged), 20)
	require.Greater(t, len(exported), 20)

	page, err := os.ReadFile("../../../docs/operate/troubleshooting.md")
	require.NoError(t, err)
	inPage := func(heading string, name *regexp.Regexp) map[string]bool {
		_, section, ok := strings.Cut(string(page), "\n## "+heading+"\n")
		require.True(t, ok, heading)
		section, _, _ = strings.Cut(section, "\n## ")
		found := make(map[string]bool)
		for line := range strings.Lines(section) {
			if cells := strings.SplitN(line, " | ", 2); strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| the") {
				for _, m := range name.FindAllStringSubmatch(cells[0], -1) {
					found[m[1]] = true
				}
			}
		}
		return found
	}
	requireSame(t, logged, inPage("Lines of the log", regexp.MustCompile("`([^`]+)`")), "a line that is logged")
	requireSame(t, exported, inPage("Errors", regexp.MustCompile("`([a-z]+\\.[A-Z]\\w+)`")), "an exported error")
}

func requireSame(t *testing.T, code map[string]string, page map[string]bool, what string) {
	t.Helper()
	for text, file := range code {
		require.True(t, page[text], "docs/operate/troubleshooting.md lacks %s of %s: %q", what, file, text)
	}
	for text := range page {
		require.Contains(t, code, text, "docs/operate/troubleshooting.md has %s that the code does not have", what)
	}
}

// logLines returns the texts that a file logs at WARN or ERROR. What is not constant in a text is "...".
func logLines(t *testing.T, name string, file *ast.File) (texts []string) {
	t.Helper()
	loud := func(e ast.Expr) bool {
		s, ok := e.(*ast.SelectorExpr)
		return ok && (s.Sel.Name == "LevelWarn" || s.Sel.Name == "LevelError")
	}
	for _, decl := range file.Decls {
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit: // a table of lines with their levels
				if slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
					kv, ok := e.(*ast.KeyValueExpr)
					return loud(e) || ok && loud(kv.Value)
				}) {
					for i, e := range n.Elts {
						kv, keyed := e.(*ast.KeyValueExpr)
						switch {
						case keyed && kv.Key.(*ast.Ident).Name == "Begin":
							texts = append(texts, constant(kv.Value)...)
						case !keyed && i == 1:
							texts = append(texts, constant(e)...)
						}
					}
				}
			case *ast.CallExpr:
				call, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || !logger(call.X) {
					return true
				}
				at := slices.Index([]string{"Warn", "WarnContext", "Log"}, strings.Replace(call.Sel.Name, "Error", "Warn", 1))
				if at < 0 || len(n.Args) <= at {
					return true
				}
				if found := constant(n.Args[at]); found != nil {
					texts = append(texts, found...)
				} else if id, ok := n.Args[at].(*ast.Ident); ok {
					found := assigned(decl, id.Name)
					require.NotEmpty(t, found, "%s: what is %s?", name, id.Name)
					texts = append(texts, found...)
				}
			}
			return true
		})
	}
	return texts
}

// logger tells whether an expression is a *slog.Logger by its name.
func logger(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return strings.EqualFold(e.Name, "log") || strings.EqualFold(e.Name, "logger") || e.Name == "slog"
	case *ast.SelectorExpr:
		return logger(e.Sel) || e.Sel.Name == "to"
	}
	return false
}

// constant returns the text of a string, with "..." for what is not constant, or nil if nothing of it is.
func constant(e ast.Expr) []string {
	var text func(e ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, _ := strconv.Unquote(e.Value)
			return s
		case *ast.BinaryExpr:
			return text(e.X) + text(e.Y)
		}
		return "..."
	}
	if s := text(e); strings.Trim(s, ".") != "" {
		return []string{s}
	}
	return nil
}

// assigned returns the constant texts that a variable is set to.
func assigned(in ast.Node, variable string) (texts []string) {
	ast.Inspect(in, func(n ast.Node) bool {
		if assign, ok := n.(*ast.AssignStmt); ok && len(assign.Lhs) == len(assign.Rhs) {
			for i, left := range assign.Lhs {
				if id, ok := left.(*ast.Ident); ok && id.Name == variable {
					texts = append(texts, constant(assign.Rhs[i])...)
				}
			}
		}
		return true
	})
	return texts
}

// exportedErrors returns the variables Err... and the types ...Error of a file, with their package.
func exportedErrors(file *ast.File) (names []string) {
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range group.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, id := range s.Names {
					if strings.HasPrefix(id.Name, "Err") && group.Tok == token.VAR {
						names = append(names, file.Name.Name+"."+id.Name)
					}
				}
			case *ast.TypeSpec:
				if strings.HasSuffix(s.Name.Name, "Error") && s.Name.IsExported() {
					names = append(names, file.Name.Name+"."+s.Name.Name)
				}
			}
		}
	}
	return names
}
