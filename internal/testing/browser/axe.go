package browser

import (
	"os"
	"slices"
	"sync"
)

// Axe is the source of axe-core, which tools/need.sh fetches into bin; "" without it. The package that calls it is two
// folders below the top of the tree.
var Axe = sync.OnceValue(func() string {
	source, err := os.ReadFile("../../bin/axe-4.14.1.min.js")
	if err != nil {
		return ""
	}
	return string(source)
})

// A Violation is a rule of axe that the page breaks.
type Violation struct {
	Impact string // minor, moderate, serious or critical
	Text   string // the rule, and the elements
}

// Violations returns the rules of axe that the page breaks as it is now. Options are those of axe.run after the first, as
// JavaScript: a comma, and keys with their values. With impacts, it returns those only.
func (tb *Tab) Violations(options string, impacts ...string) []Violation {
	tb.T.Helper()
	found := Value[[]Violation](tb, `Promise.resolve(window.axe || (0, eval)(`+Quoted(Axe())+`))
		.then(() => axe.run(document, {preload: false, resultTypes: ["violations"]`+options+`}))
		.then((r) => r.violations.map((v) => ({Impact: v.impact, Text: v.id + ": " + v.help + ": " + v.nodes.slice(0, 10).map((n) =>
			n.target.join(" ") + " " + n.html.slice(0, 200) + " (" + n.failureSummary.replace(/\s+/g, " ") + ")").join("; ")})))`)
	if len(impacts) == 0 {
		return found
	}
	return slices.DeleteFunc(found, func(v Violation) bool { return !slices.Contains(impacts, v.Impact) })
}
