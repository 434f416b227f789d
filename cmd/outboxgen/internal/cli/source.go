package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
)

const (
	defaultConfig = "outbox.yaml"
	// readLimit is more than the decoder accepts, so that the decoder reports a file that is too large.
	readLimit = 2 << 20
)

// source is the YAML that a command works on, and how its findings are printed.
type source struct {
	path   string
	format string
	other  string // how to name another file; "" means --config
}

func (s *source) flags(c *cobra.Command) {
	c.Flags().StringVar(&s.path, "config", defaultConfig, "the YAML `file`")
	_ = c.MarkFlagFilename("config", "yaml", "yml") // fails only for an undefined flag
	s.formatFlag(c)
}

func (s *source) formatFlag(c *cobra.Command) {
	c.Flags().StringVar(&s.format, "format", string(diag.Text), "`format` of findings: "+formatList())
	_ = c.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(words(diag.Formats()), cobra.ShellCompDirectiveNoFileComp))
}

// printer returns the format to print findings in; --json means json.
func (s *source) printer(a *app) (diag.Format, error) {
	if a.json {
		return diag.JSON, nil
	}
	format, err := diag.ParseFormat(s.format)
	if err != nil {
		return "", usage(fmt.Errorf("--format: %w", err))
	}
	return format, nil
}

// read returns the text of the YAML.
func (s *source) read(a *app) ([]byte, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return nil, usage(s.explain(a, err))
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, readLimit))
	if err != nil {
		return nil, usage(s.explain(a, err))
	}
	return text, nil
}

// explain says what could not be read, and what to do if the file does not exist.
func (s *source) explain(a *app, err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		other := cmp.Or(s.other, "with --config")
		if below := filesBelow(); len(below) > 0 {
			return fmt.Errorf("read %s: %w: name %s %s", a.shown(s.path), err, strings.Join(below, " or "), other)
		}
		return fmt.Errorf("read %s: %w: create one with outboxgen init, or name another %s", a.shown(s.path), err, other)
	}
	return fmt.Errorf("read %s: %w", a.shown(s.path), err)
}

// configFlag returns the flag that a command needs to read path, for a message.
func configFlag(path string) string {
	if path == defaultConfig {
		return ""
	}
	if strings.ContainsAny(path, " &()'") { // as in C:\Users\Jane Doe
		path = `"` + path + `"`
	}
	return " --config " + path
}

// filesBelow returns the files named outbox.yaml in the folders below the current one: most commands are typed in the
// root of a module, and the file is in the folder of its package.
func filesBelow() (files []string) {
	for _, pattern := range []string{"*/" + defaultConfig, "*/*/" + defaultConfig, "*/*/*/" + defaultConfig} {
		found, _ := filepath.Glob(pattern) // fails only for a malformed pattern
		for _, f := range found {
			files = append(files, filepath.ToSlash(f))
		}
	}
	return files[:min(len(files), 5)]
}

// model reads and checks the YAML. It prints the findings, and returns errReported if one of them is an error. It
// leaves out the lock: a command that works on a database needs only what the YAML says.
func (s *source) model(a *app) (*model.Model, error) { return s.load(a, nil) }

// frozenModel is model, and also checks the YAML against its lock.
func (s *source) frozenModel(a *app) (*model.Model, error) {
	frozen, err := s.lock(a)
	if err != nil {
		return nil, err
	}
	return s.load(a, frozen)
}

func (s *source) load(a *app, frozen []byte) (*model.Model, error) {
	format, err := s.printer(a)
	if err != nil {
		return nil, err
	}
	text, err := s.read(a)
	if err != nil {
		return nil, err
	}
	m, findings := generator.Load(text, generator.Options{
		Source: a.shown(s.path), Folder: inModule(filepath.Dir(s.path)), Lock: frozen,
	})
	if err := a.findings(findings, format); err != nil {
		return nil, err
	}
	return m, nil
}

// lock returns the lock next to the YAML, nil if there is none.
func (s *source) lock(a *app) ([]byte, error) { return a.readIfThere(generator.LockName(s.path)) }

// readIfThere returns the content of a file, nil if it does not exist.
func (a *app) readIfThere(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, usage(fmt.Errorf("read %s: %w", a.shown(path), pathCause(err)))
	case text == nil:
		return []byte{}, nil
	}
	return text, nil
}

// inModule returns dir as a slash path relative to the root of its module, or "." if it is not in a module.
func inModule(dir string) string {
	root, err := moduleRoot(dir)
	if err != nil {
		return "."
	}
	full, err := filepath.Abs(dir)
	if err != nil {
		return "."
	}
	relative, err := filepath.Rel(root, full)
	if err != nil {
		return "."
	}
	return filepath.ToSlash(relative)
}

// underGoGenerate reports whether go generate runs the command. It runs it in the folder of the package, which need not
// be the folder where the user stands, and does not say which that is.
func (a *app) underGoGenerate() bool { return a.Getenv("GOFILE") != "" && a.Getenv("GOPACKAGE") != "" }

// shown returns path as messages show it: as it is. Under go generate it returns the absolute path, with which a
// terminal or an editor finds the place of a finding from any folder.
func (a *app) shown(path string) string {
	if full, err := filepath.Abs(path); err == nil && a.underGoGenerate() {
		return full
	}
	return path
}

// listed returns path as the list of changed files shows it. Under go generate it is relative to the root of the
// module, where most users run go generate ./..., because a list of absolute paths is hard to read.
func (a *app) listed(path string) string {
	if !a.underGoGenerate() {
		return path
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	root, err := moduleRoot(".")
	if err != nil {
		return full
	}
	relative, err := filepath.Rel(root, full)
	if err != nil || !filepath.IsLocal(relative) {
		return full
	}
	return relative
}

func formatList() string { return strings.Join(words(diag.Formats()), ", ") }

func words[T ~string](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = string(v)
	}
	return all
}
