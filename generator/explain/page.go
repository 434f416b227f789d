package explain

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
)

const pageIntro = `# Rules

Written by ` + "`make generate`" + ` from ` + "`generator/explain/rules`" + `. ` + "`outboxgen explain RULE`" + ` prints one of them, and findings in
[editors](../model/editors.md) link here. The [list of all rules](../model/yaml.md#findings) has a line per rule.

In an example, a line with ` + "`-`" + ` is only in the file that has the finding, and a line with ` + "`+`" + ` only in the one that has not. The
lines ` + "`version`" + ` and ` + "`package`" + ` are left out where they do not matter.
`

var fence = regexp.MustCompile("(?m)^```(diff|diff whole|diff lock|yaml frozen)$")

// intros stand before the blocks of a kind.
var intros = map[string]string{
	"diff lock":   "In outbox.lock.yaml:\n\n",
	"yaml frozen": "When this is frozen:\n\n",
}

// Page returns the text of docs/reference/rules.md.
func Page() string {
	summaries := make(map[string]string)
	for _, rule := range diag.Rules() {
		summaries[string(rule.ID)] = rule.Summary
	}
	var b strings.Builder
	b.WriteString(pageIntro)
	names, _ := fs.Glob(source, "rules/*.md") // fails only for a malformed pattern
	for _, name := range names {
		text, _ := source.ReadFile(name)
		for _, section := range strings.Split("\n"+string(text), "\n## ")[1:] {
			rule, rest, _ := strings.Cut(section, "\n")
			rest = fence.ReplaceAllStringFunc(strings.TrimSpace(rest), func(line string) string {
				kind := strings.TrimPrefix(line, "```")
				language := "text"
				if strings.HasPrefix(kind, "diff") {
					language = "diff"
				}
				return intros[kind] + "```" + language
			})
			fmt.Fprintf(&b, "\n## %s\n\n*%s*\n\n%s\n", rule, summaries[rule], rest)
		}
	}
	return b.String()
}
