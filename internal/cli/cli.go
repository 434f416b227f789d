// Package cli is the command line of outboxgen: it reads flags, calls generator and migrate, and prints.
// What a command has to say for itself goes to stdout, everything else to stderr, an error on one line.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator/diag"
)

// The exit codes.
const (
	exitFine     = 0
	exitFindings = 1 // the YAML has findings, a file would change, a database does not fit
	exitUsage    = 2 // wrong arguments, or a file that cannot be read
	exitFailure  = 3 // the database, the disk, anything else
)

// Env is what a command has of the world besides files and network.
type Env struct {
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

// Run runs the command that args name, without the program's name, and returns its exit code.
func Run(ctx context.Context, env Env, args []string) int {
	a := &app{Env: env}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	return a.report(root.ExecuteContext(ctx))
}

// app is one run of the program.
type app struct {
	Env
	json bool // --json
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "outboxgen",
		Short: "Type-safe transactional outbox for Go and PostgreSQL",
		Long: `outboxgen turns outbox.yaml into Go: payload types, functions that enqueue events in your
transaction, and handler interfaces; and it looks after the tables behind them.

Exit codes: 0 fine; 1 findings: the YAML has mistakes, a generated file is out of date, or a database
does not fit; 2 wrong usage, or a file that cannot be read; 3 database or other failure.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON on stdout")
	root.AddCommand(
		a.initCommand(),
		a.generateCommand(),
		a.diffCommand(),
		a.validateCommand(),
		a.listCommand(),
		a.schemaCommand(),
		a.migrateCommand(),
		a.listenerCommand(),
		a.pruneCommand(),
		a.versionCommand(),
	)
	return root
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

// failure is an error of a command that ran, with its exit code. An error that is none comes from cobra,
// before anything ran, and is one of usage.
type failure struct {
	code int
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// usage marks an error as one of arguments or of files that cannot be read.
func usage(err error) error { return &failure{exitUsage, err} }

// errReported is the error of a command that has printed its findings.
var errReported = errors.New("findings were printed")

// run adapts a command for cobra; an error that carries no exit code yet is a failure.
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
	a.notef("outboxgen: %s", oneLine(err.Error()))
	var f *failure
	if errors.As(err, &f) {
		return f.code
	}
	return exitUsage
}

// findings prints l in the given format and returns errReported if it holds an error. Text is for
// people and goes to stderr, the others are data. With --json the warnings of a command that succeeds go to stderr as
// text, so that stdout holds its result alone.
func (a *app) findings(l diag.List, format diag.Format) error {
	w := a.Stdout
	if a.json && !l.HasErrors() {
		format = diag.Text
	}
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

// notef writes a line for people.
func (a *app) notef(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Stderr, format+"\n", args...) // a note that cannot be shown is no failure
}

// printf writes data.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.Stdout, format, args...)
	return err
}

// printJSON writes v as data, indented.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.Stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// oneLine joins the lines of an error, each once.
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
