// Package cli is the command line of outboxgen: it reads flags, calls generator, migrate, admin, dashboard or a package
// of internal/tool, and prints the result. Data goes to stdout, everything else to stderr. An error takes one line.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/internal/tool/redact"
)

// The exit codes.
const (
	exitFine     = 0
	exitFindings = 1 // the YAML has findings, a file would change, a database does not fit
	exitUsage    = 2 // wrong arguments, or a file that cannot be read
	exitFailure  = 3 // the database, the disk, anything else
)

// Env is what a command uses of its process, apart from files and network.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

// Run runs the command that args name, without the program's name, and returns its exit code.
func Run(ctx context.Context, env Env, args []string) int {
	a := &app{Env: env, args: args}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	return a.report(root.ExecuteContext(ctx))
}

// app is one run of the program.
type app struct {
	Env
	args    []string
	json    bool      // --json
	found   diag.List // findings for the --json document
	failure error     // of stdout
}

func (a *app) root() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "outboxgen",
		Short: "Type-safe transactional outbox for Go and PostgreSQL",
		Long: `outboxgen turns outbox.yaml into Go: payload types, functions that enqueue events in your
transaction, and handler interfaces. It also creates and maintains the tables that they use.

Exit codes: 0 success; 1 findings: the YAML has mistakes, a generated file is out of date, or the
database does not match; 2 wrong usage, or a file that cannot be read; 3 database or other failure.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.RunE = func(c *cobra.Command, _ []string) error {
		if !version {
			return c.Help()
		}
		return run(func(context.Context, []string) error { return a.printVersion() })(c, nil)
	}
	root.Flags().BoolVar(&version, "version", false, "print the version, as outboxgen version does")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print one JSON document on stdout")
	root.SetHelpCommand(helpCommand(root))
	root.AddCommand(
		a.initCommand(),
		a.generateCommand(),
		a.diffCommand(),
		a.validateCommand(),
		a.explainCommand(),
		a.fmtCommand(),
		a.vetCommand(),
		a.lspCommand(),
		a.listCommand(),
		a.freezeCommand(),
		a.breakingCommand(),
		a.schemaCommand(),
		a.migrateCommand(),
		a.deadCommand(),
		a.auditCommand(),
		a.drainedCommand(),
		a.statusCommand(),
		a.eventsCommand(),
		a.listenerCommand(),
		a.pauseCommand(),
		a.resumeCommand(),
		a.limitCommand(),
		a.processesCommand(),
		a.exportCommand(),
		a.pruneCommand(),
		a.resealCommand(),
		a.forgetCommand(),
		a.enqueueCommand(),
		a.doctorCommand(),
		a.dashboardCommand(),
		a.versionCommand(),
	)
	explainArgs(root)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if strings.HasPrefix(err.Error(), "unknown ") {
			return fmt.Errorf("%w: %s --help lists the flags", err, c.CommandPath())
		}
		return err
	})
	return root
}

// helpCommand shows the help of a command. Cobra's own help command exits with 0 for an unknown command.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return fmt.Errorf("unknown command %q for %q", rest[0], c.CommandPath())
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			c, _, err := root.Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []cobra.Completion
			for _, sub := range c.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// group returns a command that only holds others.
func group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(commands...)
	return c
}

// failure is an error of a command that ran, with its exit code. Any other error comes from cobra before the
// command ran, and is a usage error.
type failure struct {
	code int
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// usage marks an error in the arguments, or of a file that cannot be read.
func usage(err error) error { return &failure{exitUsage, err} }

// errReported is the error of a command that has already printed its findings.
var errReported = errors.New("findings were printed")

// run adapts a command for cobra. An error without an exit code becomes a failure with exitFailure.
func run(fn func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		err := fn(c.Context(), args)
		if err == nil || errors.Is(err, errReported) || errors.As(err, new(*failure)) {
			return err
		}
		return &failure{exitFailure, err}
	}
}

// report prints err and returns the exit code.
func (a *app) report(err error) int {
	switch {
	case err == nil:
		return exitFine
	case errors.Is(err, errReported):
		return exitFindings
	}
	if a.json { // there is no document to put them in
		_ = diag.Print(a.Stderr, diag.Text, a.found)
	}
	var f *failure
	if errors.As(err, &f) {
		a.notef("outboxgen: %s", oneLine(err.Error()))
		return f.code
	}
	a.notef("outboxgen: %s", oneLine(unknownCommand(err.Error())))
	return exitUsage
}

// unknownCommand adds to cobra's error about a command what there is instead. Cobra has its guesses on lines of their
// own.
func unknownCommand(text string) string {
	what, guesses, guessed := strings.Cut(text, "\n\nDid you mean this?\n")
	_, parent, unknown := strings.Cut(what, " for ")
	if parent, err := strconv.Unquote(parent); unknown && err == nil && strings.HasPrefix(what, "unknown command ") {
		if guessed {
			what += " (did you mean " + strings.Join(strings.Fields(guesses), " or ") + "?)"
		}
		return what + ": " + parent + " --help lists the commands"
	}
	return text
}

// findings prints l in the given format and returns errReported if it contains an error. Text goes to stderr; the other
// formats are data and go to stdout. With --json the findings are part of the one document. If errors leave no result,
// that document contains only the findings.
func (a *app) findings(l diag.List, format diag.Format) error {
	if a.json {
		a.found = append(a.found, l...)
		if !l.HasErrors() {
			return nil
		}
		if err := a.printJSON(struct{}{}); err != nil {
			return err
		}
		return errReported
	}
	w := a.Stdout
	if format == diag.Text {
		w = a.Stderr
	}
	if err := diag.Print(w, format, l); err != nil {
		return err
	}
	if l.HasErrors() {
		return errReported
	}
	return nil
}

// notef writes a line to stderr. It masks passwords, including one in a connection string that was given by mistake as
// some other argument.
func (a *app) notef(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for _, arg := range a.args {
		if _, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "-") {
			arg = value
		}
		text = redact.MaskIn(text, arg)
	}
	_, _ = fmt.Fprintln(a.Stderr, redact.Mask(text)) // a note that cannot be written does not fail the command
}

// Write writes data to stdout. After an error it writes nothing more and returns that error again, so of several prints
// in a row only the last one need be checked.
func (a *app) Write(data []byte) (n int, err error) {
	if a.failure == nil {
		n, a.failure = a.Stdout.Write(data)
	}
	return n, a.failure
}

// printf writes data to stdout.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a, format, args...)
	return err
}

// printTable prints rows of cells in columns. The first row has the titles.
func (a *app) printTable(table [][]any) error {
	w := tabwriter.NewWriter(a, 0, 0, 2, ' ', 0)
	for _, row := range table {
		for i, cell := range row {
			if i > 0 {
				_, _ = fmt.Fprint(w, "\t") // Flush reports an error
			}
			_, _ = fmt.Fprint(w, cell)
		}
		_, _ = fmt.Fprintln(w)
	}
	return w.Flush()
}

// printTables prints the tables that have rows, with an empty line between two.
func (a *app) printTables(tables ...[][]any) error {
	var err error
	for i, table := range slices.DeleteFunc(tables, func(table [][]any) bool { return len(table) < 2 }) {
		if i > 0 {
			_ = a.printf("\n")
		}
		err = a.printTable(table)
	}
	return err
}

// printList prints a list: with --json the document, otherwise the table, or a note if it has no rows.
func (a *app) printList(document any, table [][]any, none string) error {
	switch {
	case a.json:
		return a.printJSON(document)
	case len(table) < 2:
		a.notef("%s", none)
		return nil
	}
	return a.printTable(table)
}

// printJSON writes the --json document, indented: an object with the findings, then the members of parts, which must be
// structs.
func (a *app) printJSON(parts ...any) error {
	findings, err := diag.Marshal(a.found)
	if err != nil {
		return err
	}
	document := slices.Concat([]byte(`{"findings":`), findings)
	for _, part := range parts {
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		if err := e.Encode(part); err != nil {
			return err
		}
		object := bytes.TrimSpace(text.Bytes())
		if members := object[1 : len(object)-1]; len(members) > 0 {
			document = append(append(document, ','), members...)
		}
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, append(document, '}'), "", "  "); err != nil {
		return err
	}
	return a.printf("%s\n", indented.Bytes())
}

// oneLine joins the distinct lines of an error.
func oneLine(text string) string {
	var lines []string
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !seen[line] {
			seen[line] = true
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
