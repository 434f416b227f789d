// Package statements replays what each statement of queries, and each function, view, table and unique index of schema,
// does with a few known rows: what it returns, what it changes, which rows it locks. testdata has a file of cases for each.
// Whoever rewrites a statement sees at once whether it still does the same. See docs/inside/testing.md.
package statements

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Marker is the name of the schema in the texts of statements.
const Marker = "outbox_schema"

// Statement is something that a case executes.
type Statement struct {
	// Unit is the name of a query, as EventClaim, or the kind and name of an object, as "function claim_turns".
	Unit string
	// Text has the parameters $1, $2, and so on, whose names are in Params. It is empty for a table and an index: a case
	// inserts a row, and its arguments are the columns.
	Text   string
	Params []string
	// Call is whether Text is the beginning of a call of a function, without its arguments.
	Call     bool
	types    []uint32
	defaults int // how many of the last parameters have defaults
	// Table is where a case of a table or an index inserts.
	Table string
}

// Queries reads the statements that sqlc has compiled to the folder dir.
func Queries(dir string) ([]Statement, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.sql.go"))
	if err != nil {
		return nil, err
	}
	var all []Statement
	params := map[string][]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if err == nil && n.Kind == token.STRING && strings.HasPrefix(text, "-- name: ") {
					all = append(all, Statement{Unit: strings.Fields(text)[2], Text: text})
				}
			case *ast.CallExpr:
				if query, names, ok := call(n); ok {
					params[query] = names
				}
			}
			return true
		})
	}
	for i := range all {
		all[i].Params = params[all[i].Unit]
	}
	return all, nil
}

// call reads the names of the parameters from q.db.Query(ctx, EventClaim, arg.Lanes, ...).
func call(n *ast.CallExpr) (query string, params []string, ok bool) {
	method, isMethod := n.Fun.(*ast.SelectorExpr)
	if !isMethod || len(n.Args) < 2 {
		return "", nil, false
	}
	if on, isField := method.X.(*ast.SelectorExpr); !isField || on.Sel.Name != "db" {
		return "", nil, false
	}
	name, isName := n.Args[1].(*ast.Ident)
	if !isName {
		return "", nil, false
	}
	for _, arg := range n.Args[2:] {
		switch arg := arg.(type) {
		case *ast.SelectorExpr:
			params = append(params, snake(arg.Sel.Name))
		case *ast.Ident:
			params = append(params, snake(arg.Name))
		}
	}
	return name.Name, params, true
}

var humps = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// snake turns TenantID into tenant_id.
func snake(name string) string { return strings.ToLower(humps.ReplaceAllString(name, "${1}_${2}")) }

var nested = regexp.MustCompile(`\([^()]*\)`)

// ordered reports whether the rows of a statement have an order.
func ordered(text string) bool {
	text = comments.ReplaceAllString(text, "")
	for {
		shorter := nested.ReplaceAllString(text, "")
		if shorter == text {
			return strings.Contains(text, "ORDER BY")
		}
		text = shorter
	}
}

var comments = regexp.MustCompile(`--[^\n]*`)

// Name returns the name of the file of cases of a unit.
func Name(unit string) string { return strings.ReplaceAll(unit, " ", "_") + ".txt" }
