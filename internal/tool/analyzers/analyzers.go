// Package analyzers finds mistakes with operations and enqueues that compile. Its analyzers run in the protocol of go
// vet, so that the program outboxgen is also a -vettool.
package analyzers

import (
	"go/ast"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/unitchecker"
)

// Analyzers returns the analyzers. They look neither at generated files nor at tests: a test may break a rule in order
// to show what happens then.
func Analyzers() []*analysis.Analyzer { return []*analysis.Analyzer{Owned, Discarded, Zero} }

// Invoked reports whether args, without the program's name, are those with which go vet calls its tool: -V=full,
// -flags, or flags and a .cfg file.
func Invoked(args []string) bool {
	if len(args) == 0 {
		return false
	}
	for _, flag := range args[:len(args)-1] {
		if !strings.HasPrefix(flag, "-") {
			return false
		}
	}
	last := args[len(args)-1]
	return last == "-V=full" || last == "-flags" || strings.HasSuffix(last, ".cfg") && !strings.HasPrefix(last, "-")
}

// Main is the main function of the tool of go vet. It does not return.
func Main() {
	unitchecker.Main(Analyzers()...)
}

// allow starts a comment that permits an enqueue outside an operation, with the reason after it. It stands on the same
// line or the one above.
const allow = "//outboxgen:allow "

// files returns the files of the package that a person wrote and that are not tests. Package operation has none: it
// makes the outcomes.
func files(pass *analysis.Pass) []*ast.File {
	var own []*ast.File
	if pass.Pkg.Path() == module+"operation" {
		return nil
	}
	for _, f := range pass.Files {
		if !ast.IsGenerated(f) && !strings.HasSuffix(pass.Fset.Position(f.Package).Filename, "_test.go") {
			own = append(own, f)
		}
	}
	return own
}

// inspect calls visit for each node of the files that a person wrote, with the nodes around it, the outermost first.
func inspect(pass *analysis.Pass, visit func(n ast.Node, around []ast.Node)) {
	for _, f := range files(pass) {
		var around []ast.Node
		ast.Inspect(f, func(n ast.Node) bool {
			if n == nil {
				around = around[:len(around)-1]
				return true
			}
			visit(n, around)
			around = append(around, n)
			return true
		})
	}
}
