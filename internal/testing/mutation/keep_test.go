package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

// TestCommentsOfCases: a search writes for which mutants it keeps a case, and leaves the sentences of who has written it.
func TestCommentsOfCases(t *testing.T) {
	t.Parallel()
	before := []string{"A lease that ran out.", "not: a", "and 4 more"}
	require.Equal(t, []string{"A lease that ran out.", "not: b [1 -> 2]"}, noted("EventClaim", before, []string{"EventClaim: b [1 -> 2]"}))
	require.Equal(t, []string{"not: a", "not: b", "not: c", "and 1 more"}, noted("u", nil, []string{"u: a", "u: b", "u: c", "u: d"}))
}

// TestSearchKeepsOtherCases: a search for some mutants of a unit leaves the cases of the others.
func TestSearchKeepsOtherCases(t *testing.T) {
	t.Parallel()
	one := statements.Case{Note: []string{"One."}, Want: "nothing\n"}
	two := statements.Case{Args: []statements.Cell{{Name: "a", Value: "1"}}, Want: "nothing\n"}
	again := one.Clone()
	again.Note = []string{"not: a"}
	require.Equal(t, []statements.Case{one, two}, merged([]statements.Case{one}, []statements.Case{again, two}))
}
