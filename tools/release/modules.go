package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// rootPath is the path of the root module. The paths of the others begin with it.
const rootPath = "github.com/outboxgen/outboxgen"

// module is one module of the repository.
type module struct {
	dir    string // relative to the root, with slashes; "." is the root
	path   string // for import
	public bool   // users import it, so that it has tags
}

// tag returns the name of the module's tag for a version.
func (m module) tag(version string) string { return path.Join(m.dir, version) }

// modulesOf returns the modules of a checkout, with the root first.
func modulesOf(ctx context.Context, repo git) ([]module, error) {
	files, err := repo.lines(ctx, "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	list := []module{{dir: ".", path: rootPath, public: true}}
	for _, file := range files {
		dir := path.Dir(file)
		if dir == "." || strings.Contains(file, "testdata/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(repo.dir, filepath.FromSlash(file)))
		if err != nil {
			return nil, err
		}
		m := module{dir: dir, path: modfile.ModulePath(text), public: isPublic(dir)}
		if m.path != path.Join(rootPath, dir) {
			return nil, fmt.Errorf("%s: the module path is %q, want %q", file, m.path, path.Join(rootPath, dir))
		}
		list = append(list, m)
	}
	return list, nil
}

// private are the folders at the top whose modules users do not import.
//
//go:embed private.txt
var private string

// isPublic tells whether users import the module of a folder. A module that has only tests says so in its name.
func isPublic(dir string) bool {
	top, _, _ := strings.Cut(dir, "/")
	return !slices.Contains(strings.Fields(private), top) && !strings.HasSuffix(dir, "test")
}

// requireVersion makes the go.mod of a module require its siblings with a version. It does not change a requirement on
// another module. The replacements stay: they are for this repository only, because a user's build ignores them.
func requireVersion(file, version string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	mod, err := modfile.Parse(file, text, nil)
	if err != nil {
		return err
	}
	for _, r := range mod.Require {
		if isOurs(r.Mod.Path) {
			if err := mod.AddRequire(r.Mod.Path, version); err != nil {
				return err
			}
		}
	}
	if text, err = mod.Format(); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

func isOurs(modulePath string) bool {
	return modulePath == rootPath || strings.HasPrefix(modulePath, rootPath+"/")
}

// checkRequirements returns an error if a user cannot get what the go.mod of a module requires of its siblings, because
// the version is not released, or the module never is.
func checkRequirements(mod *modfile.File, version string) error {
	for _, r := range mod.Require {
		switch dir := strings.TrimPrefix(r.Mod.Path, rootPath+"/"); {
		case !isOurs(r.Mod.Path):
		case r.Mod.Path != rootPath && !isPublic(dir):
			return fmt.Errorf("%s requires %s, which is not released: move what needs it to a module that has only tests",
				mod.Module.Mod.Path, r.Mod.Path)
		case r.Mod.Version != version:
			return fmt.Errorf("%s requires %s %s, which only a replace satisfies: it must require %s",
				mod.Module.Mod.Path, r.Mod.Path, r.Mod.Version, version)
		}
	}
	for _, r := range mod.Replace {
		if !isOurs(r.Old.Path) {
			return fmt.Errorf("%s replaces %s, which users' builds ignore: remove the replace",
				mod.Module.Mod.Path, r.Old.Path)
		}
	}
	return nil
}
