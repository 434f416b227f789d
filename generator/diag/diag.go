// Package diag holds the findings of the generator about an outbox.yaml, each with a position and the id of its rule,
// and the printers that show them.
package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Pos is a place in a source file. Line and Column count from 1, columns in code points. The zero Pos means that there
// is no place, for example because a key is absent.
type Pos struct {
	File   string
	Line   int
	Column int
}

// IsValid reports whether p names a place.
func (p Pos) IsValid() bool { return p.Line > 0 }

// String returns "file:line:column".
func (p Pos) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Severity says whether a finding stops the generator.
type Severity string

// The severities. An error stops the generator, a warning does not.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Diagnostic is one finding.
type Diagnostic struct {
	Pos      Pos
	Rule     Rule
	Message  string // one line, lower case, no full stop, user text quoted
	Severity Severity
}

// String returns the finding as the text printer shows it: "file:line:column: message [rule]", with "warning: " before
// the message of a warning. Control characters are escaped, so that the text is safe for a terminal.
func (d Diagnostic) String() string {
	severity := ""
	if d.Severity == Warning {
		severity = "warning: "
	}
	return fmt.Sprintf("%s: %s%s [%s]", printable(d.Pos.String()), severity, printable(d.Message), d.Rule)
}

// List is a set of findings. It is an error whose text has one finding per line. Convert it with Err, because a nil
// List in an error is not a nil error.
type List []Diagnostic

// Error returns the findings in the form of the text printer, one per line, without a final newline.
func (l List) Error() string {
	lines := make([]string, len(l))
	for i, d := range l {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}

// Err returns l, or nil when l holds no finding of severity Error.
func (l List) Err() error {
	if !l.HasErrors() {
		return nil
	}
	return l
}

// HasErrors reports whether l holds a finding of severity Error.
func (l List) HasErrors() bool {
	return slices.ContainsFunc(l, func(d Diagnostic) bool { return d.Severity == Error })
}

// Sort orders l by file, line and column in place. Findings about the same place keep their order.
func (l List) Sort() {
	slices.SortStableFunc(l, func(a, b Diagnostic) int {
		return cmp.Or(
			cmp.Compare(a.Pos.File, b.Pos.File),
			cmp.Compare(a.Pos.Line, b.Pos.Line),
			cmp.Compare(a.Pos.Column, b.Pos.Column),
		)
	})
}

// Merge returns the findings of all lists, sorted.
func Merge(lists ...List) List {
	all := slices.Concat(lists...)
	all.Sort()
	return all
}
