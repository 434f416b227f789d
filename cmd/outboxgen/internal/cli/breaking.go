package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/evolve"
)

// breakingReport is the --json document.
type breakingReport struct {
	Against string         `json:"against"` // what the YAML was compared with
	Classes []evolve.Class `json:"classes"` // of the changes, sorted
}

func (a *app) breakingCommand() *cobra.Command {
	var src source
	var against string
	var strict bool
	c := &cobra.Command{
		Use:   "breaking",
		Short: "Compare outbox.yaml with an older one, and print the breaking changes",
		Long: `breaking compares outbox.yaml with an older one, and prints each change that events, consumers or code would
not survive, unless the version of the topic was raised. It needs no lock. The older file is a file, the file
of the same name in a folder, or the file at a git commit, branch or tag. A path that exists takes precedence
over a branch of that name.

breaking exits with 1 if a change is an error. Changed Go names are warnings, because the compiler finds their
uses and stored events are not affected; with --strict they count too.`,
		Example: `  outboxgen breaking --against origin/main
  outboxgen breaking --against v1.4.0 --strict        # also for a published consumer package
  outboxgen breaking --against ../released/outbox.yaml --json`,
		Args: cobra.NoArgs,
		RunE: run(func(ctx context.Context, _ []string) error {
			format, err := src.printer(a)
			if err != nil {
				return err
			}
			text, err := src.read(a)
			if err != nil {
				return err
			}
			old, name, err := a.older(ctx, src.path, against)
			if err != nil {
				return err
			}
			l, err := generator.Breaking(old, text, name, generator.Options{
				Source: a.shown(src.path), Folder: inModule(filepath.Dir(src.path)),
			})
			var findings diag.List
			switch {
			case errors.As(err, &findings):
				_ = diag.Print(a.Stderr, diag.Text, findings)
				return usage(fmt.Errorf("read %s: it has %s for this outboxgen: compare with a newer file", name,
					count(len(findings), "finding")))
			case err != nil:
				return err
			}
			report := breakingReport{Against: name, Classes: []evolve.Class{}}
			for _, d := range l {
				if class := evolve.ClassOf(d.Rule); class != "" && !slices.Contains(report.Classes, class) {
					report.Classes = append(report.Classes, class)
				}
			}
			slices.Sort(report.Classes)
			if a.json {
				a.found = append(a.found, l...)
				err = a.printJSON(report)
			} else if err = a.findings(l, format); errors.Is(err, errReported) {
				err = nil
			}
			if err != nil {
				return err
			}
			if l.HasErrors() || strict && len(report.Classes) > 0 {
				return errReported
			}
			if !a.json {
				a.notef("%s: no breaking change since %s", a.shown(src.path), name)
			}
			return nil
		}),
	}
	src.flags(c)
	c.Flags().StringVar(&against, "against", "", "a git `commit`, branch or tag, a folder, or a file")
	_ = c.MarkFlagRequired("against") // fails only for an undefined flag
	c.Flags().BoolVar(&strict, "strict", false, "also exit with 1 for changes that only Go code notices")
	return c
}

// older returns the YAML that path is compared with, and its name for messages.
func (a *app) older(ctx context.Context, path, against string) ([]byte, string, error) {
	if against == "" || strings.HasPrefix(against, "-") {
		return nil, "", usage(fmt.Errorf("--against: %q is not a file, a folder or a git commit", against))
	}
	info, err := os.Stat(against)
	switch {
	case err == nil && info.IsDir():
		against = filepath.Join(against, filepath.Base(path))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, "", usage(fmt.Errorf("--against: read %s: %w", against, pathCause(err)))
	case err != nil:
		return atCommit(ctx, path, against)
	}
	text, err := os.ReadFile(against)
	if err != nil {
		return nil, "", usage(fmt.Errorf("--against: read %s: %w", against, pathCause(err)))
	}
	return text, against, nil
}

// atCommit returns the file path as it was at a git commit.
func atCommit(ctx context.Context, path, commit string) ([]byte, string, error) {
	refuse := func(format string, args ...any) ([]byte, string, error) {
		return nil, "", usage(fmt.Errorf("--against: "+format, args...))
	}
	git := func(args ...string) ([]byte, error) {
		c := exec.CommandContext(ctx, "git", append([]string{"-C", filepath.Dir(path)}, args...)...)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		out, err := c.Output()
		if text := oneLine(stderr.String()); err != nil && text != "" {
			err = errors.New(text)
		}
		return out, err
	}
	if _, err := exec.LookPath("git"); err != nil {
		return refuse("%s is not a file or folder, and git is not installed to look for a commit", commit)
	}
	if _, err := git("rev-parse", "--git-dir"); err != nil {
		return refuse("%s is not a file or folder, and %s is not in a git repository: %w", commit, filepath.Dir(path), err)
	}
	if _, err := git("rev-parse", "--verify", "--quiet", commit+"^{commit}"); err != nil {
		return refuse("%s is not a file, a folder or a git commit that is here: fetch it first, for example with git fetch "+
			"origin %s (a checkout in CI often has one commit only)", commit, strings.TrimPrefix(commit, "origin/"))
	}
	object := commit + ":./" + filepath.Base(path)
	if _, err := git("cat-file", "-e", object); err != nil {
		return refuse("%s did not exist at %s: compare with a commit that has it, or with a file", path, commit)
	}
	text, err := git("show", object)
	if err != nil {
		return refuse("read %s at %s: %w", path, commit, err)
	}
	return text, commit + ":" + filepath.Base(path), nil
}
