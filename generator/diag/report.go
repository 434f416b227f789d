package diag

import (
	"fmt"
	"strconv"
)

// suggestionBudget bounds the names that one Reporter compares in search of near misses, so that a
// hostile file with many unknown names costs a fraction of a second. An honest file stays far below.
const suggestionBudget = 100_000

// Reporter collects the findings of one pass over one file. Create it with NewReporter; it is not safe
// for concurrent use.
type Reporter struct {
	file   string
	list   List
	budget int
}

// NewReporter returns an empty Reporter whose positions lie in file.
func NewReporter(file string) *Reporter {
	return &Reporter{file: file, budget: suggestionBudget}
}

// Pos returns the position at line and column of the reporter's file. A line or column below 1, which
// a parser may report for an empty file, becomes 1: no finding is without a place.
func (r *Reporter) Pos(line, column int) Pos {
	return Pos{File: r.file, Line: max(line, 1), Column: max(column, 1)}
}

// Errorf adds a finding of severity Error. Text of the user goes into format by %q.
func (r *Reporter) Errorf(pos Pos, rule Rule, format string, args ...any) {
	r.add(pos, rule, Error, fmt.Sprintf(format, args...))
}

// Warnf adds a finding of severity Warning, as Errorf adds an error.
func (r *Reporter) Warnf(pos Pos, rule Rule, format string, args ...any) {
	r.add(pos, rule, Warning, fmt.Sprintf(format, args...))
}

func (r *Reporter) add(pos Pos, rule Rule, severity Severity, message string) {
	if !pos.IsValid() {
		pos = r.Pos(1, 1)
	}
	r.list = append(r.list, Diagnostic{Pos: pos, Rule: rule, Message: message, Severity: severity})
}

// Findings returns what was reported so far, sorted by position; nil when there is nothing.
func (r *Reporter) Findings() List {
	r.list.Sort()
	return r.list
}

// DidYouMean returns ` (did you mean "name"?)` with the candidate that name is most likely a slip of,
// or "" when none is near. The first of equally near candidates wins.
func (r *Reporter) DidYouMean(name string, candidates []string) string {
	return Hint(r.Nearest(name, candidates))
}

// Hint returns ` (did you mean "name"?)`, or "" without a name.
func Hint(name string) string {
	if name == "" {
		return ""
	}
	return " (did you mean " + strconv.Quote(name) + "?)"
}

// Nearest returns the candidate that name is most likely a slip of, or "" when none is near.
func (r *Reporter) Nearest(name string, candidates []string) string {
	limit := 2
	if len(name) <= 3 {
		limit = 1
	}
	best, bestDistance := "", limit+1
	prefixed := ""
	for _, candidate := range candidates {
		if r.budget == 0 {
			break
		}
		r.budget--
		if candidate == name {
			continue
		}
		if d := distance(name, candidate, bestDistance); d < bestDistance {
			best, bestDistance = candidate, d
		}
		if prefixed == "" && isStem(name, candidate) {
			prefixed = candidate
		}
	}
	if best == "" {
		best = prefixed
	}
	return best
}
