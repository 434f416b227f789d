package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/internal/testing/statements"
)

// noted returns the comments of a case of a unit: the sentences of who has written it, which were there before, and the first
// mutants for which it is kept.
func noted(unit string, before, ids []string) []string {
	notes := slices.DeleteFunc(slices.Clone(before), func(line string) bool {
		return strings.HasPrefix(line, "not: ") || strings.HasPrefix(line, "and ")
	})
	const most = 3
	for _, id := range ids[:min(most, len(ids))] {
		notes = append(notes, "not: "+strings.TrimPrefix(id, unit+": "))
	}
	if len(ids) > most {
		notes = append(notes, fmt.Sprintf("and %d more", len(ids)-most))
	}
	return notes
}

// merged returns old cases, and behind them those of found that are not among them. A search for some mutants of a unit only
// knows which cases these need.
func merged(old, found []statements.Case) []statements.Case {
	same := func(c statements.Case) string {
		c.Note = nil
		return statements.Format([]statements.Case{c})
	}
	known := map[string]bool{}
	for _, c := range old {
		known[same(c)] = true
	}
	return append(slices.Clone(old), slices.DeleteFunc(slices.Clone(found), func(c statements.Case) bool { return known[same(c)] })...)
}
