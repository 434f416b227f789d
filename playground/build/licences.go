package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licences returns the licences of all that is in the page: of outboxgen and its Go modules, of Go, and of the packages
// from npm that the scripts were bundled from.
func licences(root string, inputs []string) ([]byte, error) {
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Dir}}{{end}}", "./wasm")
	list.Dir = filepath.Join(root, "playground")
	list.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm", "CGO_ENABLED=0")
	modules, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the modules of the generator: %w", err)
	}
	goroot, err := goroot()
	if err != nil {
		return nil, err
	}
	folders := map[string]string{"Go": goroot}
	for line := range strings.Lines(string(modules)) {
		if name, dir, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasSuffix(name, "outboxgen/playground") {
			folders[name] = dir
		}
	}
	for _, input := range inputs {
		if m := inPackage.FindStringSubmatch(filepath.ToSlash(input)); m != nil {
			folders[m[1]] = filepath.Join(root, "playground", "node_modules", filepath.FromSlash(m[1]))
		}
	}
	var names []string
	for name := range folders {
		names = append(names, name)
	}
	slices.Sort(names)
	var text bytes.Buffer
	for _, name := range names {
		files, err := filepath.Glob(filepath.Join(folders[name], "LICENSE*"))
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("%s has no licence in %s", name, folders[name])
		}
		licence, err := os.ReadFile(files[0])
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&text, "== %s\n\n%s\n\n", name, bytes.TrimSpace(licence))
	}
	return text.Bytes(), nil
}

// inPackage matches a file of a package from npm.
var inPackage = regexp.MustCompile(`node_modules/((?:@[^/]+/)?[^/]+)/`)
