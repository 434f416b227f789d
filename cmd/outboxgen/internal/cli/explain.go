package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/explain"
)

// explanation is the --json document of explain.
type explanation struct {
	Rule    diag.Rule `json:"rule"`
	Summary string    `json:"summary"`
	Text    string    `json:"text"`
	Frozen  string    `json:"frozen,omitempty"`
	Bad     example   `json:"bad"`
	Good    example   `json:"good"`
	URL     string    `json:"url"`
}

type example struct {
	YAML     string   `json:"yaml"`
	Lock     string   `json:"lock,omitempty"`
	Findings []string `json:"findings,omitempty"`
}

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain [rule]",
		Short: "Explain a finding",
		Long: `explain prints what a finding means, an outbox.yaml that has it, and one that does not. The rule is the word in
brackets at the end of a finding. Without an argument explain lists all rules.`,
		Example: "  outboxgen explain dedupe-not-injective",
		Args:    cobra.MaximumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var names []cobra.Completion
			for _, rule := range diag.Rules() {
				if len(args) == 0 {
					names = append(names, cobra.CompletionWithDesc(string(rule.ID), rule.Summary))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: run(func(_ context.Context, args []string) error {
			if len(args) == 0 {
				return a.listRules()
			}
			return a.explain(strings.Trim(args[0], "[]"))
		}),
	}
}

func (a *app) listRules() error {
	type row struct {
		Rule    diag.Rule `json:"rule"`
		Summary string    `json:"summary"`
	}
	document := struct {
		Rules []row `json:"rules"`
	}{}
	table := [][]any{{"RULE", "HOLDS WHEN"}}
	for _, rule := range diag.Rules() {
		document.Rules = append(document.Rules, row{rule.ID, rule.Summary})
		table = append(table, []any{rule.ID, rule.Summary})
	}
	return a.printList(document, table, "")
}

func (a *app) explain(rule string) error {
	e, ok := explain.Of(diag.Rule(rule))
	if !ok {
		var known []string
		for _, r := range diag.Rules() {
			known = append(known, string(r.ID))
		}
		hint := diag.NewReporter("").DidYouMean(rule, known)
		return usage(fmt.Errorf("unknown rule %q%s: outboxgen explain lists the rules", rule, hint))
	}
	found, err := e.Findings(e.Bad)
	if err != nil {
		return err
	}
	var findings []string
	for _, d := range e.OfRule(found) {
		findings = append(findings, d.String())
	}
	if a.json {
		return a.printJSON(explanation{
			Rule: e.Rule, Summary: e.Summary, Text: e.Text, Frozen: e.Frozen, URL: explain.URL(e.Rule),
			Bad: example{e.Bad.YAML, e.Bad.Lock, findings}, Good: example{YAML: e.Good.YAML, Lock: e.Good.Lock},
		})
	}
	_ = a.printf("%s: %s\n\n%s\n", e.Rule, e.Summary, e.Text)
	if e.Frozen != "" {
		_ = a.printf("\nWhen this is frozen:\n\n%s", indent(e.Frozen))
	}
	_ = a.printf("\nWith the finding:\n\n%s", exampleText(e.Bad))
	if len(findings) > 0 {
		_ = a.printf("\n%s", indent(strings.Join(findings, "\n")+"\n"))
	}
	return a.printf("\nWithout it:\n\n%s", exampleText(e.Good))
}

// exampleText returns an example as explain prints it.
func exampleText(x explain.Example) string {
	if x.Lock == "" {
		return indent(x.YAML)
	}
	return indent("# outbox.yaml\n"+x.YAML) + "\n" + indent("# outbox.lock.yaml\n"+x.Lock)
}

// indent indents the lines of a text that are not empty.
func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	return b.String()
}
