package generator

import (
	"fmt"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/emit"
)

// FolderError says that an output folder is also used by something else: another YAML has generated files that this one
// would overwrite, or its Go files are in another package. Nothing has been written.
type FolderError struct {
	Package string      // that this YAML generates there
	Sources []Neighbour // other YAML files, by name
	Others  []Neighbour // other Go packages, by name
}

// Neighbour is a YAML file or a package that shares a folder, with the files that show it.
type Neighbour struct {
	Name  string
	Files []string
}

// Error has one line per neighbour.
func (e *FolderError) Error() string {
	var lines []string
	for _, d := range e.Findings(diag.Pos{}) {
		lines = append(lines, d.Message)
	}
	return strings.Join(lines, "\n")
}

// Findings returns one finding per neighbour, at the place where the YAML names the package.
func (e *FolderError) Findings(at diag.Pos) diag.List {
	r := diag.NewReporter(at.File)
	for _, n := range e.Sources {
		r.Errorf(at, diag.OutputShared,
			"%s also generates %s: choose another output folder for one of them, or remove the file if %s is gone", n.Name,
			n.list(), n.Name)
	}
	for _, n := range e.Others {
		r.Errorf(at, diag.OutputPackage,
			"package: %q: the output folder already holds package %q, in %s: choose another package or output folder", e.Package,
			n.Name, n.list())
	}
	return r.Findings()
}

func (n Neighbour) list() string {
	switch len(n.Files) {
	case 1:
		return n.Files[0]
	case 2:
		return n.Files[0] + " and another file"
	}
	return fmt.Sprintf("%s and %d other files", n.Files[0], len(n.Files)-1)
}

// checkFolders returns a *FolderError if something else uses the folders of files.
func (c *Changes) checkFolders(root *output, files []File) error {
	_, source := wantedOf(files)
	found := &FolderError{}
	sources, others := make(map[string][]string), make(map[string][]string)
	for _, change := range c.Files {
		if from := emit.SourceOf(change.Old); from != "" && from != source {
			sources[from] = append(sources[from], filepath.Join(c.Dir, change.Name))
		}
	}
	packages := make(map[string]string) // by folder
	for _, f := range files {
		folder := path.Dir(f.Name)
		if _, known := packages[folder]; known {
			continue
		}
		packages[folder] = packageOf(f.Content)
		if err := c.addOthers(root, folder, packages[folder], source, others); err != nil {
			return err
		}
		if len(others) > 0 && found.Package == "" {
			found.Package = packages[folder]
		}
	}
	found.Sources, found.Others = neighbours(sources), neighbours(others)
	if len(found.Sources) == 0 && len(found.Others) == 0 {
		return nil
	}
	return found
}

// Strangers returns the files that Write would remove, if it would keep no file that the folder has from a YAML of this
// name. If the output folder is not the folder of the YAML, they are probably from another YAML of the same name.
func (c *Changes) Strangers() []string {
	var removed []string
	for _, change := range c.Files {
		switch {
		case change.Kind == Remove:
			removed = append(removed, filepath.Join(c.Dir, change.Name))
		case change.Old != nil && !emit.IsCommon(change.Name):
			return nil
		}
	}
	return removed
}

func neighbours(files map[string][]string) []Neighbour {
	var list []Neighbour
	for _, name := range slices.Sorted(maps.Keys(files)) {
		list = append(list, Neighbour{Name: name, Files: files[name]})
	}
	return list
}

// addOthers adds to others the Go files in a folder that are not of the package want, by their package. It ignores
// files that a build on this platform ignores, tests, and files that this YAML has generated.
func (c *Changes) addOthers(root *output, folder, want, source string, others map[string][]string) error {
	if want == "" {
		return nil
	}
	entries, err := root.ReadDir(folder)
	if err != nil {
		return nil // it does not exist yet; Write reports other obstacles
	}
	platform := build.Default
	platform.OpenFile = func(name string) (io.ReadCloser, error) { return root.Open(filepath.ToSlash(name)) }
	for _, entry := range entries {
		name := entry.Name()
		if !entry.Type().IsRegular() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		if built, err := platform.MatchFile(filepath.FromSlash(folder), name); err != nil || !built {
			continue // the compiler reports a file that does not parse
		}
		content, err := root.ReadFile(path.Join(folder, name))
		if err != nil {
			return fmt.Errorf("read %s: %w", filepath.Join(c.Dir, folder, name), cause(err))
		}
		if from := emit.SourceOf(content); emit.IsGenerated(content) && (from == "" || from == source) {
			continue
		}
		if got := packageOf(content); got != "" && got != want && got != "documentation" {
			others[got] = append(others[got], filepath.Join(c.Dir, folder, name))
		}
	}
	return nil
}

// packageOf returns the package of a Go file, "" when its package clause does not parse.
func packageOf(content []byte) string {
	file, err := parser.ParseFile(token.NewFileSet(), "", content, parser.PackageClauseOnly)
	if err != nil {
		return ""
	}
	return file.Name.Name
}
