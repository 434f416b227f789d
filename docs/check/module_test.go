package check

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
)

// module is a module as a user has one, in a temporary folder. It uses this checkout.
type module struct {
	t   testing.TB
	dir string
}

// newModule returns an empty module example.com/app. Its requirements are those of this module, which has every library
// that a page uses.
func newModule(t testing.TB) module {
	t.Helper()
	m := module{t, t.TempDir()}
	m.write("go.mod", requirements(t, "example.com/app"))
	sums, err := os.ReadFile("../go.sum")
	require.NoError(t, err)
	m.write("go.sum", string(sums))
	return m
}

// requirements returns the go.mod of this module with another name, for another folder.
func requirements(t testing.TB, name string) string {
	t.Helper()
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(mod), "\n")
	require.True(t, ok)
	here, err := filepath.Abs(root)
	require.NoError(t, err)
	return "module " + name + "\n" + strings.ReplaceAll(rest, "=> ..", "=> "+filepath.ToSlash(here))
}

// write writes a file of the module.
func (m module) write(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.dir, filepath.FromSlash(name))
	require.NoError(m.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(m.t, os.WriteFile(path, []byte(text), 0o644))
}

// environment returns the variables for a go command in the module. The checksums are those of go.sum.
func environment(more ...string) []string {
	return append(append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GOSUMDB=off", "CGO_ENABLED=0"), more...)
}

// run runs a command in the folder of the module, and returns what it prints.
func (m module) run(name string, args ...string) (string, error) {
	cmd := exec.CommandContext(m.t.Context(), name, args...)
	cmd.Dir, cmd.Env = m.dir, environment()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// generate writes the package of an outbox.yaml to a folder of the module, with its stubs. It returns the import paths of
// the package and of its consumer package, if there is one, by their names.
func (m module) generate(folder, source, what string) map[string]string {
	m.t.Helper()
	files, err := generator.Generate([]byte(source), generator.Options{Folder: folder})
	require.NoError(m.t, err, what)
	paths := make(map[string]string)
	for _, f := range files {
		m.write(folder+"/"+f.Name, string(f.Content))
		for line := range strings.Lines(string(f.Content)) {
			if name, ok := strings.CutPrefix(line, "package "); ok {
				in := folder
				if i := strings.LastIndex(f.Name, "/"); i >= 0 {
					in += "/" + f.Name[:i]
				}
				paths[strings.TrimSpace(name)] = "example.com/app/" + in
				break
			}
		}
	}
	return paths
}

// scope knows the generated packages that a page speaks of.
type scope struct {
	m     module
	paths map[string]string // by name
}

// follow takes what a block declares into the scope: its outbox.yaml, or the file that an events comment names.
func (s *scope) follow(b block) {
	s.m.t.Helper()
	source, ok := "", true
	switch b.language {
	case "yaml":
		source, ok = outboxYAML(b)
	case "events":
		text, err := os.ReadFile(filepath.Join(root, b.text))
		require.NoError(s.m.t, err, b)
		source = string(text)
	default:
		return
	}
	if ok {
		folder := "gen/" + strings.NewReplacer("/", "_", ".", "_", ":", "_").Replace(strings.ToLower(b.String()))
		maps.Copy(s.paths, s.m.generate(folder, source, b.String()))
	}
}

// outboxYAML returns the outbox.yaml that a block of YAML is, or is completed to by its yaml comment. The comment is YAML
// with a line "...", which stands for the block.
func outboxYAML(b block) (source string, ok bool) {
	if _, skipped := b.comments["not run"]; skipped {
		return "", false
	}
	around, given := b.comments["yaml"]
	if !given {
		return b.text, true
	}
	var out strings.Builder
	for line := range strings.Lines(around + "\n") {
		if strings.TrimSpace(line) != "..." {
			out.WriteString(line)
			continue
		}
		indent := line[:strings.Index(line, "...")]
		for part := range strings.Lines(b.text) {
			out.WriteString(indent + part)
		}
	}
	return out.String(), true
}
