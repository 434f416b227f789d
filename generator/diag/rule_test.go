package diag_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// Every constant of type Rule is in Rules, so that docs and golden cases cover all of them.
func TestRulesListsEveryConstant(t *testing.T) {
	t.Parallel()
	listed := make(map[string]bool)
	for _, rule := range diag.Rules() {
		listed[string(rule.ID)] = true
	}
	file, err := parser.ParseFile(token.NewFileSet(), "rule.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	constants := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Rule" {
			return true
		}
		id, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		require.True(t, listed[id], "rule %s is missing in Rules", id)
		constants++
		return true
	})
	require.Len(t, diag.Rules(), constants)
}
