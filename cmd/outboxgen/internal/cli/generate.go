package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// generation is what generate and diff have in common.
type generation struct {
	source
	out   string
	stubs string
	made  folders // created for out
}

func (g *generation) flags(c *cobra.Command) {
	g.source.flags(c)
	c.Flags().StringVar(&g.out, "out", "", "`folder` of the generated files (default: the folder of the YAML)")
	_ = c.MarkFlagDirname("out") // fails only for an undefined flag
	c.Flags().StringVar(&g.stubs, "stubs", string(generator.StubsMissing), "handler stubs to write: missing or none")
	_ = c.RegisterFlagCompletionFunc("stubs", cobra.FixedCompletions(
		words([]generator.StubMode{generator.StubsMissing, generator.StubsNone}), cobra.ShellCompDirectiveNoFileComp))
}

// plan generates the files and compares them with the output folder. If create is set, it creates that folder first.
func (g *generation) plan(a *app, create bool) (*generator.Changes, error) {
	format, err := g.printer(a)
	if err != nil {
		return nil, err
	}
	mode := generator.StubMode(g.stubs)
	if mode != generator.StubsMissing && mode != generator.StubsNone {
		return nil, usage(fmt.Errorf("--stubs: unknown mode %q: use missing or none", g.stubs))
	}
	text, err := g.read(a)
	if err != nil {
		return nil, err
	}
	dir := g.out
	if dir == "" {
		dir = filepath.Dir(g.path)
	}
	g.path, dir = a.shown(g.path), a.shown(dir) // also for what Plan says about files
	frozen, err := g.lock(a)
	if err != nil {
		return nil, err
	}
	var findings diag.List
	warn := func(l diag.List) { findings = l }
	files, err := generator.Generate(text, generator.Options{
		Source: g.path, Folder: inModule(dir), Stubs: mode, Lock: frozen, Warn: warn,
	})
	if errors.As(err, &findings) || findings != nil {
		if err := a.findings(findings, format); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	if create {
		if g.made, err = makeFolder(dir); err != nil {
			return nil, fmt.Errorf("make output folder %s: %w", dir, pathCause(err))
		}
	}
	changes, err := generator.Plan(dir, files)
	var shared *generator.FolderError
	if err == nil && filepath.Clean(dir) != filepath.Dir(g.path) {
		if strangers := changes.Strangers(); len(strangers) > 0 {
			other := "another " + filepath.Base(g.path)
			err = &generator.FolderError{Sources: []generator.Neighbour{{Name: other, Files: strangers}}}
		}
	}
	switch {
	case errors.As(err, &shared):
		s, _ := spec.Decode(text, g.path)
		return nil, a.findings(shared.Findings(s.Package.Pos), format)
	case err != nil && !errors.As(err, new(*generator.ConflictError)):
		return nil, usage(err)
	}
	return changes, err
}

// changeRow is a change in the --json document.
type changeRow struct {
	File   string         `json:"file"`
	Change generator.Kind `json:"change"`
}

// changeList is the --json document.
type changeList struct {
	Changes []changeRow `json:"changes"`
}

func (a *app) changeRows(c *generator.Changes) []changeRow {
	rows := []changeRow{}
	for _, change := range c.Pending() {
		rows = append(rows, changeRow{
			File: filepath.ToSlash(a.listed(filepath.Join(c.Dir, change.Name))), Change: change.Kind,
		})
	}
	return rows
}

// printChanges lists the files that were changed, or would be.
func (a *app) printChanges(c *generator.Changes) error {
	rows := a.changeRows(c)
	if a.json {
		return a.printJSON(changeList{rows})
	}
	return a.printChangeRows(rows)
}

func (a *app) printChangeRows(rows []changeRow) (err error) {
	for _, row := range rows {
		err = a.printf("%s %s\n", row.Change, row.File)
	}
	return err
}

// lateRemovals returns the removed files that go generate will still look for after the file from. go generate lists
// the files of a package before it runs anything, and ends with an error when it comes to one that is gone.
func lateRemovals(c *generator.Changes, from string) []string {
	var names []string
	for _, change := range c.Pending() {
		if from != "" && change.Kind == generator.Remove && filepath.Dir(change.Name) == "." && change.Name > from {
			names = append(names, change.Name)
		}
	}
	return names
}

func (a *app) generateCommand() *cobra.Command {
	var g generation
	var check, dryRun bool
	c := &cobra.Command{
		Use:   "generate",
		Short: "Generate Go from outbox.yaml",
		Long: `generate checks outbox.yaml and writes the Go files that it describes next to it. It writes a file only
if its bytes change, and writes all files or none. It removes the generated files of topics that are gone.
It also writes stubs for handlers that are missing; a stub belongs to you and generate never changes it.
If freeze has written outbox.lock.yaml, the payloads of older versions are generated too. A file that differs
only in its line ends, as in a checkout of Windows, is up to date.

generate never overwrites a file that outboxgen did not write. It refuses an output folder that holds
another Go package, or in which another YAML generates a file of the same name. The changes are listed on
stdout. Under go generate, findings and errors have absolute paths, so that terminals and editors find the
place wherever you run it, and the list of changes is relative to the root of the module.`,
		Example: `  outboxgen generate
  outboxgen generate --check          # in CI: exit 1 if a file is out of date
  outboxgen generate --config events/outbox.yaml --out internal/events`,
		Args: cobra.NoArgs,
		RunE: run(func(context.Context, []string) error {
			changes, err := g.plan(a, !check && !dryRun)
			if err == nil && !check && !dryRun {
				err = changes.Write()
			}
			g.made.removeIf(err != nil)
			if err != nil {
				return err
			}
			if !check && !dryRun {
				for _, name := range lateRemovals(changes, a.Getenv("GOFILE")) {
					a.notef(
						"removed %s: go generate has listed it already and will not find it: run go generate again, or move the "+
							"go:generate line to a file that sorts last, such as %s", name, goFile)
				}
			}
			if err := a.printChanges(changes); err != nil {
				return err
			}
			if n := len(changes.Pending()); check && n > 0 {
				a.notef("%s: %s out of date: run outboxgen generate%s", g.path, count(n, "file"), configFlag(g.path))
				return errReported
			}
			return nil
		}),
	}
	g.flags(c)
	c.Flags().BoolVar(&check, "check", false, "write nothing; exit with 1 if a file would change")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "write nothing; list what would change")
	c.MarkFlagsMutuallyExclusive("check", "dry-run")
	return c
}

// diffReport is the --json document of diff.
type diffReport struct {
	Changes []changeRow `json:"changes"`
	Diff    string      `json:"diff"`
}

func (a *app) diffCommand() *cobra.Command {
	var g generation
	c := &cobra.Command{
		Use:   "diff",
		Short: "Show what generate would change",
		Long: `diff prints a unified diff between the files in the output folder and those that generate would write. It
exits with 1 if there is a difference. It writes nothing.`,
		Args: cobra.NoArgs,
		RunE: run(func(context.Context, []string) error {
			changes, err := g.plan(a, false)
			if err != nil {
				return err
			}
			report := diffReport{Changes: a.changeRows(changes), Diff: changes.Diff()}
			if a.json {
				err = a.printJSON(report)
			} else {
				err = a.printf("%s", report.Diff)
			}
			if err == nil && len(report.Changes) > 0 {
				err = errReported
			}
			return err
		}),
	}
	g.flags(c)
	return c
}
