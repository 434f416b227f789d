package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
)

// versionRow is a version of a topic in the --json document.
type versionRow struct {
	Topic   string `json:"topic"`
	Version int    `json:"version"`
}

// freezeReport is the --json document.
type freezeReport struct {
	Changes []changeRow  `json:"changes"`
	Added   []versionRow `json:"added"`
	Changed []versionRow `json:"changed"`
	Retired []versionRow `json:"retired"`
}

func (a *app) freezeCommand() *cobra.Command {
	var src source
	var retire []string
	var check bool
	c := &cobra.Command{
		Use:   "freeze",
		Short: "Write outbox.lock.yaml, which protects events that are out in the world",
		Long: `freeze writes the present version of every topic to outbox.lock.yaml, next to the YAML, and example
payloads of every version to testdata/outbox.frozen.json. Commit both, for example with each release. From
then on validate and generate find every change of a frozen version that its events would not survive. To
make such a change, raise the version of the topic: the older payload is then generated, and you write the
function that turns it into the new one.

freeze keeps the older versions that the lock holds. It writes nothing and exits with 1 if the YAML breaks a
frozen version. The lock has checksums: do not edit it. The changed files are listed on stdout.`,
		Example: `  outboxgen freeze
  outboxgen freeze --check                           # in CI: exit 1 if the lock is out of date
  outboxgen freeze --retire mini_chat/turn_started   # a topic that is gone, when outboxgen drained says so
  outboxgen freeze --retire mini_chat/turn_finalized@1`,
		Args: cobra.NoArgs,
		RunE: run(func(context.Context, []string) error {
			changes, frozen, err := a.plannedFreeze(&src, retire)
			if err != nil {
				return err
			}
			if !check {
				if err := changes.Write(); err != nil {
					return err
				}
			}
			return a.printFrozen(&src, changes, frozen, check)
		}),
	}
	src.flags(c)
	c.Flags().BoolVar(&check, "check", false, "write nothing; exit with 1 if the lock or the examples would change")
	c.Flags().StringArrayVar(&retire, "retire", nil,
		"remove a `topic` that the YAML no longer has, or the versions of a topic up to topic@version; repeatable")
	return c
}

// plannedFreeze returns what freeze writes.
func (a *app) plannedFreeze(src *source, retire []string) (*generator.Changes, *generator.Frozen, error) {
	format, err := src.printer(a)
	if err != nil {
		return nil, nil, err
	}
	text, err := src.read(a)
	if err != nil {
		return nil, nil, err
	}
	locked, err := src.lock(a)
	if err != nil {
		return nil, nil, err
	}
	examplesPath := generator.ExamplesName(src.path)
	examples, err := a.readIfThere(examplesPath)
	if err != nil {
		return nil, nil, err
	}
	dir := filepath.Dir(src.path)
	var findings diag.List
	frozen, err := generator.Freeze(text, examples, retire, generator.Options{
		Source: a.shown(src.path), Folder: inModule(dir), Lock: locked, Warn: func(l diag.List) { findings = l },
	})
	if errors.As(err, &findings) || findings != nil {
		if err := a.findings(findings, format); err != nil {
			return nil, nil, err
		}
	}
	var broken *generator.ExamplesError
	switch {
	case errors.As(err, &broken):
		return nil, nil, usage(fmt.Errorf("read %s: %w: restore it from version control, or remove it", a.shown(examplesPath),
			broken))
	case errors.As(err, new(*generator.RetireError)):
		return nil, nil, usage(fmt.Errorf("--%w", err))
	case err != nil:
		return nil, nil, err
	}
	changes, err := generator.PlanFreeze(src.path, frozen)
	if err != nil {
		return nil, nil, usage(err)
	}
	return changes, frozen, nil
}

func (a *app) printFrozen(src *source, changes *generator.Changes, frozen *generator.Frozen, check bool) error {
	var err error
	if a.json {
		report := freezeReport{
			Changes: a.changeRows(changes), Added: versionRows(frozen.Added), Changed: versionRows(frozen.Changed),
			Retired: versionRows(frozen.Retired),
		}
		err = a.printJSON(report)
	} else {
		err = a.printChanges(changes)
		for _, part := range []struct {
			verb     string
			versions []generator.FrozenVersion
		}{{"new", frozen.Added}, {"changed in a compatible way", frozen.Changed}, {"retired", frozen.Retired}} {
			for _, v := range part.versions {
				a.notef("%s: %s", v, part.verb)
			}
		}
	}
	if err == nil && check && len(changes.Pending()) > 0 {
		a.notef("%s: out of date: run outboxgen freeze%s", a.shown(generator.LockName(src.path)), configFlag(src.path))
		err = errReported
	}
	return err
}

func versionRows(versions []generator.FrozenVersion) []versionRow {
	rows := make([]versionRow, len(versions))
	for i, v := range versions {
		rows[i] = versionRow(v)
	}
	return rows
}
