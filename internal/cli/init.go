package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator/spec"
	"github.com/outboxgen/outboxgen/internal/pgname"
	"github.com/outboxgen/outboxgen/templates"
)

const (
	toolPath    = "github.com/outboxgen/outboxgen/cmd/outboxgen"
	schemaFile  = "outbox.schema.json"
	goFile      = "zz_generate.go" // behind every generated file: see lateRemovals
	packageName = "events"         // when the folder suggests none
)

func (a *app) initCommand() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "init [dir]",
		Short: "Start an outbox.yaml",
		Long: `init writes a first outbox.yaml that generates as it is, its JSON Schema for the editor, and a Go file
with the go:generate line. The Go package is the one that the folder holds, else it is named after the
folder. No file is ever overwritten.`,
		Args: cobra.MaximumNArgs(1),
		RunE: run(func(_ context.Context, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			return a.start(dir, name)
		}),
	}
	c.Flags().StringVar(&name, "package", "", "`name` of the Go package (default: that of the folder)")
	return c
}

// initReport is what init did, as --json shows it.
type initReport struct {
	Package string   `json:"package"`
	Files   []string `json:"files"`
	Next    []string `json:"next"`
}

func (a *app) start(dir, name string) error {
	config := filepath.Join(dir, defaultConfig)
	if _, err := os.Lstat(config); err == nil {
		return usage(fmt.Errorf("write %s: it is there already, and init overwrites nothing", config))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder %s: %w", dir, pathCause(err))
	}
	found, err := look(dir)
	if err != nil {
		return err
	}
	switch {
	case name == "":
		name = found.name
	case !isPackageName(name):
		return usage(fmt.Errorf("--package: %q is no name for a package: want lower-case letters, digits and _", name))
	case found.code && found.name != name:
		return usage(fmt.Errorf("--package: folder %s holds package %s", dir, found.name))
	}
	files, err := starters(name)
	if err != nil {
		return err
	}
	report := initReport{Package: name, Files: []string{}, Next: nextSteps(dir)}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if f.name == goFile && found.directive {
			continue
		}
		err := createFile(path, f.content)
		switch {
		case errors.Is(err, os.ErrExist) && f.name == goFile:
			report.Next = append([]string{"add to " + path + ": //go:generate go tool outboxgen generate"}, report.Next...)
		case errors.Is(err, os.ErrExist) && f.name == schemaFile:
		case err != nil:
			return err
		default:
			report.Files = append(report.Files, filepath.ToSlash(path))
		}
	}
	if a.json {
		return a.printJSON(report)
	}
	for _, path := range report.Files {
		if err := a.printf("create %s\n", path); err != nil {
			return err
		}
	}
	for _, step := range report.Next {
		a.notef("next: %s", step)
	}
	return nil
}

type starterFile struct {
	name    string
	content []byte
}

// starters renders the files, the YAML first: where it cannot be written, nothing is.
func starters(name string) ([]starterFile, error) {
	data := templates.Starter{Package: name, Source: defaultConfig}
	yaml, err := templates.StarterYAML(data)
	if err != nil {
		return nil, err
	}
	schema, err := spec.JSONSchema()
	if err != nil {
		return nil, err
	}
	code, err := templates.StarterGo(data)
	if err != nil {
		return nil, err
	}
	return []starterFile{{defaultConfig, yaml}, {schemaFile, schema}, {goFile, code}}, nil
}

// folder is what init finds.
type folder struct {
	name      string // of its Go package, or one made of its own name
	code      bool   // it holds Go already
	directive bool   // which runs outboxgen already
}

// look reads the Go files in dir, tests excepted.
func look(dir string) (folder, error) {
	var found folder
	entries, err := os.ReadDir(dir)
	if err != nil {
		return found, usage(fmt.Errorf("read folder %s: %w", dir, pathCause(err)))
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return found, usage(fmt.Errorf("read %s: %w", path, pathCause(err)))
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.PackageClauseOnly)
		if err == nil && !found.code {
			found.name, found.code = file.Name.Name, true
		}
		if bytes.Contains(text, []byte("\n//go:generate ")) && bytes.Contains(text, []byte("outboxgen generate")) {
			found.directive = true
		}
	}
	if found.code {
		return found, nil
	}
	full, err := filepath.Abs(dir)
	if err != nil {
		return found, err
	}
	if found.name = filepath.Base(full); !isPackageName(found.name) {
		found.name = packageName
	}
	return found, nil
}

var packagePattern = regexp.MustCompile(pgname.Pattern)

func isPackageName(name string) bool {
	return packagePattern.MatchString(name) && !token.IsKeyword(name) && !strings.HasSuffix(name, "_test")
}

// nextSteps says what is left to do: a module with the tool line, then generate.
func nextSteps(dir string) []string {
	var steps []string
	text, err := goMod(dir)
	if err != nil {
		steps = append(steps, "go mod init <module>")
	}
	if !strings.Contains(text, toolPath) {
		steps = append(steps, "go get -tool "+toolPath)
	}
	return append(steps, "go generate "+packageArgument(dir), "go mod tidy")
}

// goMod returns the text of the go.mod that governs dir.
func goMod(dir string) (string, error) {
	full, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(full, "go.mod"))
		if err == nil {
			return string(text), nil
		}
		up := filepath.Dir(full)
		if up == full {
			return "", err
		}
		full = up
	}
}

// packageArgument renders dir as an argument of go generate.
func packageArgument(dir string) string {
	dir = filepath.ToSlash(filepath.Clean(dir))
	if filepath.IsAbs(dir) || dir == "." || dir == ".." || strings.HasPrefix(dir, "../") {
		return dir
	}
	return "./" + dir
}
