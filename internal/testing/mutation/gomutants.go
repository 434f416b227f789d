package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// goPackage is a package that decides.
type goPackage struct {
	dir        string
	simulation string // the folder of its simulation, whose tests may kill its mutants, too
	database   bool   // its tests need PostgreSQL
}

// goPackages are the packages that decide.
var goPackages = []goPackage{
	{dir: "queue/internal/core", simulation: "queue/internal/core/simtest"},
	{dir: "listener/internal/core", simulation: "listener/internal/core/simtest"},
	{dir: "inbox", database: true},
	{dir: "payload"},
	{dir: "eventkey"},
	{dir: "internal/payloads/masking"},
	{dir: "internal/payloads/upcast"},
	{dir: "internal/payloads/decode"},
	{dir: "internal/tool/yamlmask"},
	{dir: "internal/call/errclass"},
	{dir: "internal/machine/rest"},
}

// tests returns the folders of the tests that may kill mutants of p.
func (p goPackage) tests() []string {
	if p.simulation == "" {
		return []string{p.dir}
	}
	return []string{p.dir, p.simulation}
}

// decides returns the package of m, or false if m is a mutant of SQL.
func (m mutant) decides() (goPackage, bool) {
	i := slices.IndexFunc(goPackages, func(p goPackage) bool { return p.dir == m.goPackage })
	if i < 0 {
		return goPackage{}, false
	}
	return goPackages[i], true
}

// switchFile is added to each package that decides. A test binary contains all mutants of Go, and an environment variable
// switches one of them on.
const switchFile = `package %s

import (
	"fmt"
	"os"
	"sync"
)

var (
	mutantName  = os.Getenv("OUTBOXGEN_MUTANT")
	mutantTrace = os.Getenv("OUTBOXGEN_MUTATION_TRACE")
	mutantSeen  sync.Map
	mutantIs    = func() (n uint32) { _, _ = fmt.Sscanf(mutantName, "go-%%x", &n); return n }()
)

func mutantOn(n uint32) bool {
	if mutantTrace != "" {
		if _, seen := mutantSeen.LoadOrStore(n, true); !seen {
			if file, err := os.OpenFile(mutantTrace, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
				fmt.Fprintf(file, "go-%%08x\n", n)
				file.Close()
			}
		}
	}
	return n == mutantIs
}
`

// goMutants writes the packages that decide with all their mutants into out, and returns the mutants and the overlay for
// the go command.
func goMutants(out string) ([]mutant, string, error) {
	patterns := make([]string, len(goPackages))
	for i, p := range goPackages {
		patterns[i] = "./" + p.dir
	}
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedSyntax | packages.NeedTypes |
			packages.NeedTypesInfo,
		BuildFlags: []string{"-tags=mutation"},
	}, patterns...)
	if err != nil {
		return nil, "", err
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return nil, "", err
	}
	var all []mutant
	replaced := map[string]string{}
	for _, pkg := range loaded {
		if len(pkg.Errors) > 0 {
			return nil, "", pkg.Errors[0]
		}
		var dir string
		for _, file := range pkg.Syntax {
			path := pkg.Fset.Position(file.Package).Filename
			name, err := filepath.Rel(root, path)
			if err != nil {
				return nil, "", err
			}
			dir = filepath.Dir(name)
			src, err := os.ReadFile(path)
			if err != nil {
				return nil, "", err
			}
			w := &weaver{set: pkg.Fset, info: pkg.TypesInfo, src: src, dir: filepath.ToSlash(dir), ids: map[string]int{}}
			w.file(file)
			all = append(all, w.mutants...)
			if err := write(out, name, w.woven(), replaced); err != nil {
				return nil, "", err
			}
		}
		name := filepath.Join(dir, "mutant_switch.go")
		if err := write(out, name, fmt.Appendf(nil, switchFile, pkg.Name), replaced); err != nil {
			return nil, "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return nil, "", err
	}
	path := filepath.Join(out, "overlay.json")
	return all, path, os.WriteFile(path, overlay, 0o600)
}

// write puts a file into out if it is not there already, and notes what it replaces. Its name does not end in .go, so
// that out is no package of the module.
func write(out, name string, content []byte, replaced map[string]string) error {
	path := filepath.Join(out, strings.ReplaceAll(filepath.ToSlash(name), "/", "_")+".txt")
	from, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	if replaced[from], err = filepath.Abs(path); err != nil {
		return err
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return os.WriteFile(path, content, 0o600)
}
