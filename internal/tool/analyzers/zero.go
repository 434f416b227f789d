package analyzers

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

// Zero finds functions that return a zero outcome without an error.
var Zero = &analysis.Analyzer{
	Name: "outboxzero",
	Doc: `find zero outcomes that are returned without an error

An operation whose function returns a zero outcome and no error is rolled back, and the caller
gets an error at run time. Return the outcome of a method of the transaction, or an error.`,
	Run: runZero,
}

func runZero(pass *analysis.Pass) (any, error) {
	for _, f := range files(pass) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch fn := n.(type) {
			case *ast.FuncDecl:
				if sig, ok := pass.TypesInfo.TypeOf(fn.Name).(*types.Signature); ok && fn.Body != nil {
					checkReturns(pass, sig, fn.Body)
				}
			case *ast.FuncLit:
				if sig, ok := pass.TypesInfo.TypeOf(fn).(*types.Signature); ok {
					checkReturns(pass, sig, fn.Body)
				}
			}
			return true
		})
	}
	return nil, nil
}

// checkReturns reports the returns of a function that end it with a zero outcome and no error.
func checkReturns(pass *analysis.Pass, sig *types.Signature, body *ast.BlockStmt) {
	at := -1
	for i := range sig.Results().Len() {
		if isOutcome(sig.Results().At(i).Type()) {
			at = i
		}
	}
	if at < 0 {
		return
	}
	last := sig.Results().Len() - 1
	fails := isError(sig.Results().At(last).Type())
	unset := func(v *types.Var) bool { return !assigned(pass, body, v) }
	ast.Inspect(body, func(n ast.Node) bool {
		if _, inner := n.(*ast.FuncLit); inner {
			return false // it has returns of its own
		}
		r, ok := n.(*ast.ReturnStmt)
		if !ok {
			return true
		}
		zero := false
		switch len(r.Results) {
		case 0: // named results
			zero = unset(sig.Results().At(at)) && (!fails || unset(sig.Results().At(last)))
		case sig.Results().Len():
			zero = isZero(pass, body, r.Results[at]) && (!fails || isNil(pass, r.Results[last]))
		}
		if zero {
			pass.Reportf(r.Pos(), "this return ends the operation with a zero outcome, which rolls it back: return the "+
				"outcome of a method of its transaction, or an error")
		}
		return true
	})
}

func isNil(pass *analysis.Pass, e ast.Expr) bool { return pass.TypesInfo.Types[e].IsNil() }

// isZero reports whether e is certainly a zero outcome: an empty composite literal, *new(T), or a variable of the
// function that nothing sets.
func isZero(pass *analysis.Pass, body *ast.BlockStmt, e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.CompositeLit:
		return len(e.Elts) == 0
	case *ast.StarExpr:
		call, ok := ast.Unparen(e.X).(*ast.CallExpr)
		return ok && pass.TypesInfo.Types[call.Fun].IsBuiltin()
	case *ast.Ident:
		v, ok := pass.TypesInfo.Uses[e].(*types.Var)
		return ok && declaredZero(pass, body, v) && !assigned(pass, body, v)
	}
	return false
}

// declaredZero reports whether body declares v without a value.
func declaredZero(pass *analysis.Pass, body *ast.BlockStmt, v *types.Var) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && len(spec.Values) == 0 {
			for _, name := range spec.Names {
				found = found || pass.TypesInfo.Defs[name] == v
			}
		}
		return true
	})
	return found
}

// assigned reports whether body may set v: it assigns to it or takes its address.
func assigned(pass *analysis.Pass, body *ast.BlockStmt, v *types.Var) bool {
	found := false
	is := func(e ast.Expr) bool {
		id, ok := ast.Unparen(e).(*ast.Ident)
		return ok && (pass.TypesInfo.Uses[id] == v || pass.TypesInfo.Defs[id] == v)
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				found = found || is(e)
			}
		case *ast.RangeStmt:
			found = found || n.Key != nil && is(n.Key) || n.Value != nil && is(n.Value)
		case *ast.UnaryExpr:
			found = found || n.Op == token.AND && is(n.X)
		}
		return true
	})
	return found
}
