package cli

import (
	"bytes"
	"context"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
	"github.com/outboxgen/outboxgen/templates"
)

const (
	toolPath    = "github.com/outboxgen/outboxgen/cmd/outboxgen"
	schemaFile  = "outbox.schema.json"
	goFile      = "zz_generate.go" // sorts after every generated file: see lateRemovals
	packageName = "events"         // if the name of the folder is not a valid package name
)

func (a *app) initCommand() *cobra.Command {
	var name string
	var worker bool
	c := &cobra.Command{
		Use:   "init [dir]",
		Short: "Start an outbox.yaml, or a program that delivers its events",
		Long: `init writes a first outbox.yaml that is ready to generate from, its JSON Schema for the editor, and a
Go file with the go:generate line. The Go package is the one in the folder; without one it is named after
the folder. init never overwrites a file.

With --worker it also writes cmd/worker/main.go, a program with two commands. "worker run" runs all
dispatchers and listeners of the YAML until SIGTERM or SIGINT. "worker drain" delivers what is due, within
bounds, and prints a report as JSON: for cron jobs. The file is yours to change. If the folder has an
outbox.yaml, init --worker writes this program for it and nothing else.`,
		Example: `  outboxgen init events            # events/outbox.yaml and what belongs to it
  outboxgen init --worker events   # and cmd/worker/main.go`,
		Args: cobra.MaximumNArgs(1),
		RunE: run(func(_ context.Context, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			return a.start(dir, name, worker)
		}),
	}
	c.Flags().StringVar(&name, "package", "", "`name` of the Go package (default: that of the folder)")
	c.Flags().BoolVar(&worker, "worker", false,
		"also write cmd/worker/main.go, which runs and drains the dispatchers and listeners")
	return c
}

// initReport is the --json document of init.
type initReport struct {
	Package string   `json:"package"`
	Files   []string `json:"files"`
	Next    []string `json:"next"`
}

func (a *app) start(dir, name string, worker bool) (err error) {
	var home workerHome
	if worker {
		if home, err = findHome(dir); err != nil {
			return err
		}
	}
	config := filepath.Join(dir, defaultConfig)
	if _, err := os.Lstat(config); err == nil {
		if worker {
			return a.startWorker(dir, name, home)
		}
		return usage(fmt.Errorf("write %s: file exists, and init never overwrites a file", config))
	}
	made, err := makeFolder(dir)
	if err != nil {
		return fmt.Errorf("make folder %s: %w", dir, pathCause(err))
	}
	defer func() { made.removeIf(err != nil) }()
	found, err := look(dir)
	if err != nil {
		return err
	}
	switch {
	case name == "":
		name = found.name
	case !isPackageName(name):
		return usage(fmt.Errorf("--package: %q is not a valid package name: use a lower-case letter, then up to 40 of a-z, "+
			"0-9 or _, and no Go keyword", name))
	case found.code && found.name != name:
		return usage(fmt.Errorf("--package: folder %s already contains package %s", dir, found.name))
	}
	files, err := starters(name)
	if err != nil {
		return err
	}
	report := initReport{Package: name, Files: []string{}, Next: nextSteps(dir)}
	missing := report.missing(dir, files, found)
	if !worker {
		return a.create(dir, missing, report)
	}
	m, findings := model.Load(files[0].Content, defaultConfig)
	if m == nil { // a folder may have another package
		return a.findings(findings, diag.Text)
	}
	program, brokers, err := workerProgram(home, m)
	if err != nil {
		return err
	}
	for i := range missing { // all are written together, relative to the module
		missing[i].Name = path.Join(home.folder, missing[i].Name)
	}
	return a.create(home.root, append(missing, program), home.report(dir, brokers, report))
}

// missing returns those of files that are to be written to dir, where found was found, and adds them to the report.
func (r *initReport) missing(dir string, files []generator.File, found folder) (missing []generator.File) {
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		_, err := os.Lstat(path)
		switch {
		case f.Name == goFile && found.directive:
		case err == nil && f.Name == goFile:
			r.Next = append([]string{"add to " + path + ": //go:generate go tool outboxgen generate"}, r.Next...)
		case err == nil && f.Name == schemaFile:
		default:
			missing = append(missing, f)
			r.Files = append(r.Files, filepath.ToSlash(path))
		}
	}
	return missing
}

// startWorker writes the worker for the outbox.yaml in dir.
func (a *app) startWorker(dir, name string, home workerHome) error {
	src := source{path: filepath.Join(dir, defaultConfig), format: string(diag.Text)}
	m, err := src.model(a)
	switch {
	case err != nil:
		return err
	case name != "" && name != m.Package:
		return usage(fmt.Errorf("--package: %s is of package %s", src.path, m.Package))
	}
	program, brokers, err := workerProgram(home, m)
	if err != nil {
		return err
	}
	return a.create(home.root, []generator.File{program},
		home.report(dir, brokers, initReport{Package: m.Package, Files: []string{}, Next: nextSteps(dir)}))
}

// create writes files to dir and prints the report.
func (a *app) create(dir string, files []generator.File, report initReport) error {
	if err := generator.WriteNew(dir, files); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(report)
	}
	err := a.printCreated(report.Files)
	for _, step := range report.Next {
		a.notef("next: %s", step)
	}
	return err
}

// starters renders the files, the YAML first.
func starters(name string) ([]generator.File, error) {
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
	return []generator.File{
		{Name: defaultConfig, Content: yaml}, {Name: schemaFile, Content: schema}, {Name: goFile, Content: code},
	}, nil
}

// folder is what init finds.
type folder struct {
	name      string // its Go package, or a package name made from its own name
	code      bool   // it contains Go files
	directive bool   // one of which runs outboxgen
}

// look reads the Go files in dir, except tests.
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

// nextSteps returns the commands that are left to run: create a module, add the tool line, generate.
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

// goMod returns the text of the go.mod of dir's module.
func goMod(dir string) (string, error) {
	root, err := moduleRoot(dir)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	return string(text), err
}

// moduleRoot returns the root of dir's module.
func moduleRoot(dir string) (string, error) {
	full, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		_, err := os.Stat(filepath.Join(full, "go.mod"))
		if err == nil {
			return full, nil
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
