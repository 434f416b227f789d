package analyzers

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// Owned finds events that are enqueued outside the operation that owns their topic.
var Owned = &analysis.Analyzer{
	Name: "outboxowned",
	Doc: `find events that are enqueued outside their operation

A topic in the outcome of an operation belongs to that operation: its business rows and its
events commit together. A call of EnqueueTurnFinalized next to it could write the event without
the rows. A comment //outboxgen:allow with a reason, on the line or above it, permits the call.`,
	Run: runOwned,
}

func runOwned(pass *analysis.Pass) (any, error) {
	known := make(owners)
	allowed := allowances(pass)
	inspect(pass, func(n ast.Node, _ []ast.Node) {
		name, payload := enqueued(pass, n)
		owned := known.of(payload)
		if len(owned) == 0 {
			return
		}
		at := lineOf(pass, n.Pos())
		if allowed[at] || allowed[line{at.file, at.number - 1}] {
			return
		}
		pass.Reportf(n.Pos(), "%s enqueues an event of operation %s outside it: call %s, and return %s", name,
			each(owned, func(o owner) string { return o.operation }),
			each(owned, func(o owner) string { return payload.Pkg().Name() + "." + o.operation }),
			each(owned, func(o owner) string { return "tx." + o.outcome }))
	})
	return nil, nil
}

// each joins the distinct texts of owned.
func each(owned []owner, text func(owner) string) string {
	var texts []string
	for _, o := range owned {
		if t := text(o); !slices.Contains(texts, t) {
			texts = append(texts, t)
		}
	}
	return strings.Join(texts, " or ")
}

// enqueued returns what n enqueues, and the name of the function: n is the name of a generated function or method that
// enqueues, or of a method of outbox.Topic, also where it is not called, or a call of a method of outbox.UntypedTopic.
// It returns nil for any other node.
func enqueued(pass *analysis.Pass, n ast.Node) (string, *types.TypeName) {
	switch n := n.(type) {
	case *ast.Ident:
		fn, ok := pass.TypesInfo.Uses[n].(*types.Func)
		if !ok || !strings.HasPrefix(fn.Name(), "Enqueue") || !returnsReceipt(fn.Signature()) {
			return "", nil
		}
		if recv := fn.Signature().Recv(); recv != nil && isOurs(recv.Type(), "outbox.Topic") {
			topic := recv.Type()
			if pointer, ok := topic.(*types.Pointer); ok {
				topic = pointer.Elem()
			}
			return "Topic." + fn.Name(), typeName(topic.(*types.Named).TypeArgs().At(0))
		}
		for param := range fn.Signature().Params().Variables() {
			if payload := typeName(param.Type()); payload != nil && fn.Pkg() == payload.Pkg() {
				return fn.Name(), payload
			}
		}
	case *ast.CallExpr:
		fn, ok := typeutil.Callee(pass.TypesInfo, n).(*types.Func)
		if !ok || fn.Signature().Recv() == nil || !isOurs(fn.Signature().Recv().Type(), "outbox.UntypedTopic") ||
			!returnsReceipt(fn.Signature()) {
			return "", nil
		}
		for i, param := range slices.Collect(fn.Signature().Params().Variables()) {
			if (param.Name() == "payload" || param.Name() == "payloads") && i < len(n.Args) {
				return "Untyped()." + fn.Name(), typeName(pass.TypesInfo.TypeOf(n.Args[i]))
			}
		}
	}
	return "", nil
}

// returnsReceipt reports whether the first result is a receipt, or several.
func returnsReceipt(sig *types.Signature) bool {
	return sig.Results().Len() > 0 && isReceipt(sig.Results().At(0).Type())
}

// line is a line of a file.
type line struct {
	file   string
	number int
}

// allowances returns the lines with a comment that permits an enqueue and gives a reason.
func allowances(pass *analysis.Pass) map[line]bool {
	lines := make(map[line]bool)
	for _, f := range files(pass) {
		for _, group := range f.Comments {
			for _, c := range group.List {
				if reason, ok := strings.CutPrefix(c.Text, allow); ok && strings.TrimSpace(reason) != "" {
					lines[lineOf(pass, c.Pos())] = true
				}
			}
		}
	}
	return lines
}

func lineOf(pass *analysis.Pass, pos token.Pos) line {
	at := pass.Fset.Position(pos)
	return line{at.Filename, at.Line}
}
