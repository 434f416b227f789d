package analyzers

import (
	"go/types"
	"slices"
	"strings"
)

// module is the beginning of the paths of the packages whose types show what generated code is.
const module = "github.com/outboxgen/outboxgen/"

// isOurs reports whether t, or what it points to or is a slice of, is one of types, which are named as in
// "operation.Outcome".
func isOurs(t types.Type, types ...string) bool {
	obj := typeName(t)
	if obj == nil || obj.Pkg() == nil {
		return false
	}
	name, ours := strings.CutPrefix(obj.Pkg().Path(), module)
	return ours && slices.Contains(types, name+"."+obj.Name())
}

// isReceipt reports whether t is a receipt, or a slice of them.
func isReceipt(t types.Type) bool { return isOurs(t, "outbox.Receipt", "outbox.PendingReceipt") }

// isOutcome reports whether t is the outcome of an operation: operation.Outcome, or a generated struct with nothing
// else in it.
func isOutcome(t types.Type) bool {
	named, ok := types.Unalias(t).(*types.Named)
	if !ok {
		return false
	}
	if isOurs(named, "operation.Outcome") {
		return true
	}
	s, ok := named.Underlying().(*types.Struct)
	return ok && s.NumFields() == 1 && isOurs(s.Field(0).Type(), "operation.Outcome")
}

// typeName returns the type that t is, points to, or is a slice of. It is nil if that has no name.
func typeName(t types.Type) *types.TypeName {
	switch inner := types.Unalias(t).(type) {
	case *types.Pointer:
		return typeName(inner.Elem())
	case *types.Slice:
		return typeName(inner.Elem())
	case *types.Named:
		return inner.Obj()
	}
	return nil
}

// owner is an outcome that enqueues a payload.
type owner struct {
	operation string // FinalizeTurn
	outcome   string // Settled
}

// owners knows which operations own which payloads. It reads that from the types of generated code: the transaction of
// an operation is a struct with an *operation.Operation, and the parameters of the methods that return an outcome are
// the payloads of its events.
type owners map[*types.Package]map[*types.TypeName][]owner

// of returns who owns the payload, nobody if it is not one. Operations are in the package of their payloads.
func (o owners) of(payload *types.TypeName) []owner {
	if payload == nil || payload.Pkg() == nil {
		return nil
	}
	pkg := payload.Pkg()
	if _, known := o[pkg]; !known {
		o[pkg] = ownersIn(pkg)
	}
	return o[pkg][payload]
}

func ownersIn(pkg *types.Package) map[*types.TypeName][]owner {
	found := make(map[*types.TypeName][]owner)
	scope := pkg.Scope()
	for _, name := range scope.Names() { // sorted
		tx, ok := scope.Lookup(name).(*types.TypeName)
		if !ok || !isOperationTx(tx.Type()) {
			continue
		}
		named := types.Unalias(tx.Type()).(*types.Named)
		for method := range named.Methods() {
			sig := method.Signature()
			if sig.Results().Len() == 0 || !isOutcome(sig.Results().At(0).Type()) {
				continue
			}
			for param := range sig.Params().Variables() {
				if payload := typeName(param.Type()); payload != nil && payload.Pkg() == pkg {
					found[payload] = append(found[payload], owner{strings.TrimSuffix(name, "Tx"), method.Name()})
				}
			}
		}
	}
	return found
}

// isOperationTx reports whether t is the generated transaction of an operation.
func isOperationTx(t types.Type) bool {
	named, ok := types.Unalias(t).(*types.Named)
	if !ok {
		return false
	}
	s, ok := named.Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for field := range s.Fields() {
		if isOurs(field.Type(), "operation.Operation") {
			return true
		}
	}
	return false
}
