package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/exp/apidiff"
	"golang.org/x/tools/go/packages"
)

// checkAPI compares the exported API of a module in two checkouts, and returns an error if the step between their
// versions does not allow what has changed. A module that the old checkout does not have is new, and so is compatible.
func checkAPI(ctx context.Context, oldRoot, newRoot string, m module, from, to string) error {
	before, err := exported(ctx, oldRoot, m)
	if err != nil {
		return err
	}
	after, err := exported(ctx, newRoot, m)
	if err != nil {
		return err
	}
	report := apidiff.ModuleChanges(before, after)
	var broken, added []string
	for _, c := range report.Changes {
		if c.Compatible {
			added = append(added, c.Message)
		} else {
			broken = append(broken, c.Message)
		}
	}
	switch {
	case len(broken) > 0 && !breaks(from, to):
		return fmt.Errorf("%s breaks the API of %s, which needs a higher %s version: %s", m.path, from, bump(from),
			few(broken))
	case len(added) > 0 && !extends(from, to):
		return fmt.Errorf("%s adds to the API of %s, which needs a higher minor version: %s", m.path, from, few(added))
	}
	return nil
}

func bump(from string) string {
	if strings.HasPrefix(from, "v0.") {
		return "minor"
	}
	return "major"
}

// few returns the first messages of a list on one line.
func few(messages []string) string {
	const most = 3
	if rest := len(messages) - most; rest > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(messages[:most], "; "), rest)
	}
	return strings.Join(messages, "; ")
}

// mayChange are the packages of the root without a promise, each with those below it. docs/change/upgrading.md says
// so.
var mayChange = []string{"consume/receive", "generator", "schema", "templates"}

// isPromised tells whether semantic versions are about a package.
func isPromised(importPath string) bool {
	if strings.Contains(importPath+"/", "/internal/") {
		return false
	}
	for _, dir := range mayChange {
		if strings.HasPrefix(importPath+"/", rootPath+"/"+dir+"/") {
			return false
		}
	}
	return true
}

// exported returns the packages of a module that semantic versions are about, with their types.
func exported(ctx context.Context, root string, m module) (*apidiff.Module, error) {
	cfg := &packages.Config{
		Context: ctx,
		Dir:     filepath.Join(root, filepath.FromSlash(m.dir)),
		Mode:    packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps | packages.NeedModule,
	}
	list, err := packages.Load(cfg, "./...")
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", m.path, err)
	}
	found := &apidiff.Module{Path: m.path}
	for _, p := range list {
		if p.Name == "main" || !isPromised(p.PkgPath) {
			continue
		}
		var problems []error
		for _, e := range p.Errors {
			problems = append(problems, e)
		}
		if len(problems) > 0 {
			return nil, fmt.Errorf("load %s: %w", p.PkgPath, errors.Join(problems...))
		}
		found.Packages = append(found.Packages, p.Types)
	}
	return found, nil
}
