package diag_test

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/diag"
)

func at(file string, line, column int, message string) diag.Diagnostic {
	return diag.Diagnostic{Pos: diag.Pos{File: file, Line: line, Column: column}, Rule: diag.UnknownKey, Message: message, Severity: diag.Error}
}

func TestSortIsByPositionAndStable(t *testing.T) {
	t.Parallel()
	l := diag.List{at("b", 1, 1, "1"), at("a", 10, 1, "2"), at("a", 2, 9, "3"), at("a", 2, 10, "4"), at("a", 2, 9, "5")}
	l.Sort()
	var order string
	for _, d := range l {
		order += d.Message
	}
	require.Equal(t, "35421", order)

	var many diag.List
	for i := range 1000 {
		many = append(many, at("a", 1+i%3, 1, strconv.Itoa(1000+i)))
	}
	many.Sort()
	require.True(t, slices.IsSortedFunc(many, func(a, b diag.Diagnostic) int {
		return cmp.Or(cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Message, b.Message))
	}))
}

func TestListIsAnErrorWithALinePerFinding(t *testing.T) {
	t.Parallel()
	l := diag.Merge(diag.List{at("a", 2, 1, "second")}, nil, diag.List{at("a", 1, 1, "first")})
	require.EqualError(t, l.Err(), "a:1:1: first [unknown-key]\na:2:1: second [unknown-key]")
	var list diag.List
	require.True(t, errors.As(l.Err(), &list))
	require.Len(t, list, 2)
}

func TestWarningsAreNoError(t *testing.T) {
	t.Parallel()
	warning := at("a", 1, 1, "odd")
	warning.Severity = diag.Warning
	require.NoError(t, diag.List{warning}.Err())
	require.NoError(t, diag.List(nil).Err())
	require.Error(t, diag.List{warning, at("a", 1, 1, "wrong")}.Err())
}

func TestRulesAreDistinctAndDescribed(t *testing.T) {
	t.Parallel()
	seen := make(map[diag.Rule]bool)
	for _, rule := range diag.Rules() {
		require.Regexp(t, `^[a-z]+(-[a-z]+)*$`, string(rule.ID))
		require.Regexp(t, `^[A-Za-z].*\.$`, rule.Summary)
		require.False(t, seen[rule.ID], "rule %s is listed twice", rule.ID)
		seen[rule.ID] = true
	}
}
