package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
)

// standardInput is the argument that means stdin, and what findings call it.
const (
	standardInput     = "-"
	standardInputName = "stdin"
)

// formatting is one run of fmt.
type formatting struct {
	source
	check, diff bool
}

// formatted is a file with its change.
type formatted struct {
	path    string // as it was given
	changes *generator.Changes
	text    []byte
}

func (f *formatted) pending() bool { return len(f.changes.Pending()) > 0 }

func (a *app) fmtCommand() *cobra.Command {
	var f formatting
	c := &cobra.Command{
		Use:   "fmt [file...]",
		Short: "Format outbox.yaml",
		Long: `fmt rewrites files in the canonical layout: the keys of a mapping in the order of the reference, two spaces per
level, and at most one blank line in a row. The order of names, such as those of topics and fields, stays, because the
generated code has it. Comments stay with what they are about. Values, quotes, line ends (LF or CRLF) and the layout of
values on several lines stay as they are. What the file says does not change: fmt checks that before it writes.

Without arguments fmt takes outbox.yaml. The argument - reads stdin and writes to stdout. The changed files
are listed on stdout. If a file has mistakes in its syntax, keys or types of values, fmt prints them, exits with
1, and changes no file. It does not check anything else: see outboxgen validate.`,
		Example: `  outboxgen fmt
  outboxgen fmt --check events/outbox.yaml     # in CI: exit 1 if the file would change
  outboxgen fmt --diff`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE:              run(func(_ context.Context, args []string) error { return f.run(a, args) }),
	}
	c.Flags().BoolVar(&f.check, "check", false, "write nothing; exit with 1 if a file would change")
	c.Flags().BoolVar(&f.diff, "diff", false, "write nothing; print a unified diff, and exit with 1 if there is one")
	f.formatFlag(c)
	return c
}

func (f *formatting) run(a *app, args []string) error {
	if len(args) == 0 {
		args = []string{defaultConfig}
	}
	format, err := f.printer(a)
	switch {
	case err != nil:
		return err
	case slices.Contains(args, standardInput) && len(args) > 1:
		return usage(errors.New("- stands for stdin and cannot be combined with files"))
	case args[0] == standardInput && a.json:
		return usage(errors.New("--json cannot be combined with -, which prints the file"))
	}
	var files []*formatted
	var findings diag.List
	for i, path := range args {
		if slices.Contains(args[:i], path) {
			continue
		}
		file, err := formatOne(a, path)
		var l diag.List
		if errors.As(err, &l) {
			findings = append(findings, l...)
			continue
		}
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	if err := a.findings(findings, format); err != nil {
		return err
	}
	if args[0] == standardInput && !f.check && !f.diff {
		return a.printf("%s", files[0].text)
	}
	if !f.check && !f.diff {
		for _, file := range files {
			if err := file.changes.Write(); err != nil {
				return err
			}
		}
	}
	return f.print(a, files)
}

// formatOne formats a file, and writes nothing.
func formatOne(a *app, path string) (*formatted, error) {
	src, name := source{path: path, other: "as an argument"}, a.shown(path)
	var text []byte
	var err error
	if path == standardInput {
		name = standardInputName
		if text, err = io.ReadAll(io.LimitReader(a.Stdin, readLimit)); err != nil {
			return nil, usage(fmt.Errorf("read stdin: %w", err))
		}
	} else if text, err = src.read(a); err != nil {
		return nil, err
	}
	made, err := generator.Format(text, name)
	if err != nil {
		return nil, err
	}
	file := &formatted{path: name, text: made}
	if path == standardInput {
		file.changes = generator.FormatChange(name, text, made)
	} else if file.changes, err = generator.PlanFormat(path, text, made); err != nil {
		return nil, usage(err)
	}
	return file, nil
}

// print lists the files that were changed, or would be.
func (f *formatting) print(a *app, files []*formatted) error {
	report := diffReport{Changes: []changeRow{}}
	for _, file := range files {
		if file.pending() {
			report.Changes = append(report.Changes, changeRow{
				File: filepath.ToSlash(a.listed(file.path)), Change: generator.Update,
			})
			report.Diff += file.changes.Diff()
		}
	}
	var err error
	switch {
	case a.json && f.diff:
		err = a.printJSON(report)
	case a.json:
		err = a.printJSON(changeList{report.Changes})
	case f.diff:
		err = a.printf("%s", report.Diff)
	default:
		err = a.printChangeRows(report.Changes)
	}
	if n := len(report.Changes); err == nil && n > 0 && (f.check || f.diff) {
		if f.check {
			a.notef("%s not formatted: run outboxgen fmt", count(n, "file"))
		}
		return errReported
	}
	return err
}
