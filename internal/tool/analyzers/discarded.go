package analyzers

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// Discarded finds errors of enqueues and operations that nobody looks at.
var Discarded = &analysis.Analyzer{
	Name: "outboxerr",
	Doc: `find discarded errors of enqueues and operations

An enqueue whose error is discarded may have written nothing, and the transaction commits without
the event. The same holds for an outcome, for the receipt of a batch, and for an operation, which
may have been rolled back.`,
	Run: runDiscarded,
}

func runDiscarded(pass *analysis.Pass) (any, error) {
	inspect(pass, func(n ast.Node, around []ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		what := consequence(pass, call)
		if what == "" || !discards(call, parentOf(around)) {
			return
		}
		pass.Reportf(call.Pos(), "the error of %s is discarded: %s", calleeName(pass, call), what)
	})
	return nil, nil
}

// consequence says what a discarded error of call means. It is "" for a call whose error is not checked here.
func consequence(pass *analysis.Pass, call *ast.CallExpr) string {
	if pass.TypesInfo.Types[call.Fun].IsType() { // a conversion
		return ""
	}
	fn := pass.TypesInfo.TypeOf(call.Fun)
	if fn == nil {
		return ""
	}
	sig, ok := fn.Underlying().(*types.Signature)
	if !ok || sig.Results().Len() == 0 || !isError(sig.Results().At(sig.Results().Len()-1).Type()) {
		return ""
	}
	for result := range sig.Results().Variables() {
		switch {
		case isReceipt(result.Type()):
			return "the transaction may commit without the event"
		case isOutcome(result.Type()):
			return "the events may not have been written"
		}
	}
	if runsOperation(sig) {
		return "the operation may have been rolled back"
	}
	return ""
}

// runsOperation reports whether a function of sig gets a function that returns an outcome: it runs an operation.
func runsOperation(sig *types.Signature) bool {
	for param := range sig.Params().Variables() {
		if do, ok := param.Type().Underlying().(*types.Signature); ok && do.Results().Len() == 2 &&
			isOutcome(do.Results().At(0).Type()) {
			return true
		}
	}
	return false
}

// parentOf returns the innermost node that is not a parenthesis.
func parentOf(around []ast.Node) ast.Node {
	for _, n := range slices.Backward(around) {
		if _, paren := n.(*ast.ParenExpr); !paren {
			return n
		}
	}
	return nil
}

// discards reports whether the parent of call drops its last result.
func discards(call *ast.CallExpr, parent ast.Node) bool {
	blank := func(e ast.Expr) bool {
		id, ok := ast.Unparen(e).(*ast.Ident)
		return ok && id.Name == "_"
	}
	switch p := parent.(type) {
	case *ast.ExprStmt, *ast.GoStmt, *ast.DeferStmt:
		return true
	case *ast.AssignStmt:
		if len(p.Rhs) == 1 {
			return blank(p.Lhs[len(p.Lhs)-1])
		}
		for i, e := range p.Rhs {
			if ast.Unparen(e) == call {
				return blank(p.Lhs[i])
			}
		}
	case *ast.ValueSpec:
		if len(p.Values) == 1 {
			return blank(p.Names[len(p.Names)-1])
		}
	}
	return false
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

// calleeName returns the name of what is called, for messages.
func calleeName(pass *analysis.Pass, call *ast.CallExpr) string {
	if fn := typeutil.Callee(pass.TypesInfo, call); fn != nil {
		return fn.Name()
	}
	return "the call"
}
