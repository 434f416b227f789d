// Package explain says what each finding means, with an example that has it and one that does not.
package explain

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
)

// page is where the explanations can be read, each under its rule: the site that .github/workflows/site.yml publishes.
const page = "https://outboxgen.github.io/outboxgen/reference/rules.html"

// URL returns the address of the explanation of a rule.
func URL(rule diag.Rule) string { return page + "#" + string(rule) }

// Explanation explains a rule.
type Explanation struct {
	Rule    diag.Rule
	Summary string // what holds when there is no finding, as diag.Rules has it
	Text    string // paragraphs of Markdown
	Frozen  string // the outbox.yaml that was frozen before both examples; "" for none
	Bad     Example
	Good    Example
}

// Example is an outbox.yaml, and the lock next to it, "" for none.
type Example struct {
	YAML string
	Lock string
}

// source has a section for each rule: a heading, paragraphs, and fenced blocks. The block "diff" has both examples: a
// line that begins with - is only in the bad one, with + only in the good one. They begin with head, unless the block
// is "diff whole". "diff lock" is the same for the lock, without head. "yaml frozen" is the YAML that was frozen.
//
//go:embed rules
var source embed.FS

const head = "version: \"1\"\npackage: events\n"

// placeholders stand in the examples for what a terminal would not show. Validation sees the text behind them.
var placeholders = strings.NewReplacer("␀", "\x00", "# (1 MiB of text)", "# "+strings.Repeat("text ", 1<<18))

// Of returns the explanation of a rule; ok is false for a rule that does not exist.
func Of(rule diag.Rule) (e Explanation, ok bool) {
	e, ok = all()[rule]
	return e, ok
}

var all = sync.OnceValue(func() map[diag.Rule]Explanation {
	found := make(map[diag.Rule]Explanation)
	names, _ := fs.Glob(source, "rules/*.md") // fails only for a malformed pattern
	for _, name := range names {
		text, _ := source.ReadFile(name)
		for _, section := range strings.Split("\n"+string(text), "\n## ")[1:] {
			e := parse(section)
			found[e.Rule] = e
		}
	}
	for _, rule := range diag.Rules() {
		if e, ok := found[rule.ID]; ok {
			e.Summary = rule.Summary
			found[rule.ID] = e
		}
	}
	return found
})

// parse reads a section of source.
func parse(section string) Explanation {
	title, rest, _ := strings.Cut(section, "\n")
	e := Explanation{Rule: diag.Rule(title)}
	var text strings.Builder
	for {
		before, block, found := strings.Cut(rest, "```")
		text.WriteString(before)
		if !found {
			break
		}
		info, body, _ := strings.Cut(block, "\n")
		body, rest, _ = strings.Cut(body, "```")
		switch info {
		case "diff":
			e.Bad.YAML, e.Good.YAML = head+side(body, '-'), head+side(body, '+')
		case "diff whole":
			e.Bad.YAML, e.Good.YAML = side(body, '-'), side(body, '+')
		case "diff lock":
			e.Bad.Lock, e.Good.Lock = side(body, '-'), side(body, '+')
		case "yaml frozen":
			e.Frozen = head + body
		}
	}
	e.Text = strings.TrimSpace(text.String())
	return e
}

// side returns the lines of a diff that are common, or marked with sign.
func side(diff string, sign byte) string {
	var b strings.Builder
	for line := range strings.Lines(diff) {
		if line[0] == ' ' || line[0] == sign {
			b.WriteString(line[1:])
		} else if line == "\n" {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Findings validates an example of e and returns its findings. The rules about the output folder are not checked.
func (e Explanation) Findings(x Example) (diag.List, error) {
	o := generator.Options{Source: "outbox.yaml"}
	switch {
	case x.Lock != "":
		o.Lock = []byte(x.Lock)
	case e.Frozen != "":
		frozen, err := generator.Freeze([]byte(e.Frozen), nil, nil, o)
		if err != nil {
			return nil, fmt.Errorf("freeze the example of %s: %w", e.Rule, err)
		}
		o.Lock = frozen.Lock
	}
	_, findings := generator.Load([]byte(placeholders.Replace(x.YAML)), o)
	return findings, nil
}

// OfRule returns the findings of l that the rule of e has.
func (e Explanation) OfRule(l diag.List) diag.List {
	return slices.DeleteFunc(slices.Clone(l), func(d diag.Diagnostic) bool { return d.Rule != e.Rule })
}
