package diag

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// suggestionBudget bounds the names that one Reporter compares for suggestions, so that a hostile file with many
// unknown names costs a fraction of a second. An ordinary file stays far below.
const suggestionBudget = 100_000

// Reporter collects the findings of one pass over one file. Create it with NewReporter; it is not safe
// for concurrent use.
type Reporter struct {
	file   string
	list   List
	hints  map[Pos]string
	budget int
}

// NewReporter returns an empty Reporter whose positions lie in file.
func NewReporter(file string) *Reporter {
	return &Reporter{file: file, budget: suggestionBudget}
}

// Pos returns the position at line and column of the reporter's file. A line or column below 1, which a parser may
// report for an empty file, becomes 1, so that every finding has a place.
func (r *Reporter) Pos(line, column int) Pos {
	return Pos{File: r.file, Line: max(line, 1), Column: max(column, 1)}
}

// Errorf adds a finding of severity Error. Use %q for the user's text.
func (r *Reporter) Errorf(pos Pos, rule Rule, format string, args ...any) {
	r.add(pos, rule, Error, fmt.Sprintf(format, args...))
}

// Warnf adds a finding of severity Warning, as Errorf adds an error.
func (r *Reporter) Warnf(pos Pos, rule Rule, format string, args ...any) {
	r.add(pos, rule, Warning, fmt.Sprintf(format, args...))
}

// UseHints adds a hint to later findings, by their place, unless they already have one.
func (r *Reporter) UseHints(hints map[Pos]string) { r.hints = hints }

func (r *Reporter) add(pos Pos, rule Rule, severity Severity, message string) {
	if !pos.IsValid() {
		pos = r.Pos(1, 1)
	}
	if hint := r.hints[pos]; hint != "" && !strings.HasSuffix(message, ")") {
		message += " (" + hint + ")"
	}
	r.list = append(r.list, Diagnostic{Pos: pos, Rule: rule, Message: message, Severity: severity})
}

// Findings returns the findings so far, sorted by position; nil when there are none.
func (r *Reporter) Findings() List {
	r.list.Sort()
	return r.list
}

// DidYouMean returns ` (did you mean "name"?)` with the candidate that name most likely means. It returns "" when none
// is near, or several are equally near: a wrong suggestion is worse than none.
func (r *Reporter) DidYouMean(name string, candidates []string) string {
	return Hint(r.Nearest(name, candidates))
}

// Hint returns ` (did you mean "name"?)`, or "" without a name.
func Hint(name string) string {
	if name == "" {
		return ""
	}
	return hintStart + strconv.Quote(name) + hintEnd
}

const (
	hintStart = " (did you mean "
	hintEnd   = "?)"
)

// Suggestion returns what to write, and in place of which text, if the message of d ends with a Hint. Instead is "" for
// a message that does not quote the text; then all that stands at the place of d is meant.
func (d Diagnostic) Suggestion() (instead, better string, ok bool) {
	what, hint, found := strings.Cut(d.Message, hintStart)
	if !found || !strings.HasSuffix(hint, hintEnd) {
		return "", "", false
	}
	better, err := strconv.Unquote(strings.TrimSuffix(hint, hintEnd))
	if err != nil {
		return "", "", false
	}
	if start := strings.IndexByte(what, '"'); start >= 0 {
		if quoted, err := strconv.QuotedPrefix(what[start:]); err == nil {
			instead, _ = strconv.Unquote(quoted)
		}
	}
	return instead, better, true
}

// Nearest returns the candidate that name most likely means, or "" when there is not exactly one. It prefers a
// candidate that differs only in case and separators, then the one with the fewest typing errors, then one that extends
// name, as turn_id extends turn.
func (r *Reporter) Nearest(name string, candidates []string) string {
	var same, near, stem nearest
	for _, candidate := range candidates {
		if r.budget == 0 {
			break
		}
		r.budget--
		if candidate == name {
			continue
		}
		if sameWord(name, candidate) {
			same.add(candidate, 0)
		}
		limit := allowance(len(name), len(candidate))
		if d := distance(name, candidate, limit+1); d <= limit {
			near.add(candidate, d)
		}
		if isStem(name, candidate) {
			stem.add(candidate, 1)
		}
		if candidate == name+"_id" {
			stem.add(candidate, 0)
		}
	}
	return cmp.Or(same.only(), near.only(), stem.only())
}

// allowance is how many typing errors may separate words of a and b bytes.
func allowance(a, b int) int {
	switch {
	case max(a, b) < 3:
		return 0
	case min(a, b) < 7:
		return 1
	}
	return 2
}

// nearest keeps the candidate with the smallest distance, and whether there are several.
type nearest struct {
	candidate string
	distance  int
	several   bool
}

func (n *nearest) add(candidate string, distance int) {
	switch {
	case n.candidate == "" || distance < n.distance:
		*n = nearest{candidate: candidate, distance: distance}
	case distance == n.distance && candidate != n.candidate:
		n.several = true
	}
}

func (n *nearest) only() string {
	if n.several {
		return ""
	}
	return n.candidate
}
