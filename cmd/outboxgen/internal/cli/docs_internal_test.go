package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/explain"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md and rules.md")

// docs/reference/cli.md is what the commands say of themselves. `make generate` writes it.
func TestDocsOfTheCommands(t *testing.T) {
	const file = "../../../../docs/reference/cli.md"
	want := markdown((&app{}).root())
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "docs/reference/cli.md is out of date: run make generate")
}

// docs/reference/rules.md is what outboxgen explain prints. `make generate` writes it.
func TestDocsOfTheRules(t *testing.T) {
	const file = "../../../../docs/reference/rules.md"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(explain.Page()), 0o644))
		return
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, explain.Page(), string(got), "docs/reference/rules.md is out of date: run make generate")
}

// Each command explains itself, because docs/reference/cli.md has nothing else.
func TestCommandsExplainThemselves(t *testing.T) {
	t.Parallel()
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		require.NotEmpty(t, c.Short, c.CommandPath())
		require.NotEmpty(t, c.Long, c.CommandPath())
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { require.NotEmpty(t, f.Usage, "%s --%s", c.CommandPath(), f.Name) })
		for _, sub := range commands(c) {
			check(sub)
		}
	}
	check((&app{}).root())
}

// commands returns the subcommands of c that help shows. Those of cobra are not ours.
func commands(c *cobra.Command) (list []*cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
			list = append(list, sub)
		}
	}
	return list
}

// markdown returns the text of docs/reference/cli.md.
func markdown(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Commands\n\nWritten by `make generate` from the texts of the commands, which `outboxgen help COMMAND` shows too.\n\n")
	fmt.Fprintf(&b, "%s\n\n| command | |\n|---|---|\n", root.Long)
	var all []*cobra.Command
	var collect func(c *cobra.Command)
	collect = func(c *cobra.Command) {
		for _, sub := range commands(c) {
			all = append(all, sub)
			collect(sub)
		}
	}
	collect(root)
	for _, c := range all {
		name := strings.TrimPrefix(c.CommandPath(), "outboxgen ")
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", name, "outboxgen-"+strings.ReplaceAll(name, " ", "-"), c.Short)
	}
	b.WriteString("\nEvery command has `--json`, which prints one JSON document on stdout, and `--help`.\n")
	for _, c := range all {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```text\n%s\n```\n", c.CommandPath(), c.Long, c.UseLine())
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```sh\n%s\n```\n", unindent(c.Example))
		}
		var rows []string
		add := func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" || f.Name == "json" {
				return
			}
			kind, text := pflag.UnquoteUsage(f)
			name := "`--" + f.Name
			if kind != "" {
				name += " " + kind
			}
			if text = strings.ReplaceAll(text, "|", `\|`); f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "[]" && f.DefValue != "0s" {
				text += fmt.Sprintf(" (default `%s`)", f.DefValue)
			}
			rows = append(rows, fmt.Sprintf("| %s` | %s |", name, text))
		}
		c.LocalFlags().VisitAll(add)
		c.InheritedFlags().VisitAll(add)
		if len(rows) > 0 && (len(commands(c)) == 0 || c.LocalNonPersistentFlags().HasAvailableFlags()) {
			b.WriteString("\n| flag | |\n|---|---|\n" + strings.Join(rows, "\n") + "\n")
		}
	}
	return b.String()
}

// unindent removes the indentation that help gives examples.
func unindent(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}
