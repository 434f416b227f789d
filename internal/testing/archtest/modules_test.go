package archtest

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModulesAreDocumented: a page has the go get of each module that users require, and CONTRIBUTING has the modules
// that must be replaced to use it from a checkout.
func TestModulesAreDocumented(t *testing.T) {
	t.Parallel()
	var modules []string
	for _, pattern := range []string{"publish/*", "consume/*", "telemetry/*", "sqltx"} {
		files, err := filepath.Glob("../../../" + pattern + "/go.mod")
		require.NoError(t, err)
		for _, file := range files {
			if dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), "../../../"); isPublic(t, dir) {
				modules = append(modules, dir)
			}
		}
	}
	require.Greater(t, len(modules), 8)
	pages, err := filepath.Glob("../../../docs/*/*.md")
	require.NoError(t, err)
	documented := ""
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		get := regexp.MustCompile(`(?m)go get github.com/outboxgen/outboxgen/.*$`)
		for _, line := range get.FindAllString(string(text), -1) {
			documented += line + "\n"
		}
	}
	contributing, err := os.ReadFile("../../../CONTRIBUTING.md")
	require.NoError(t, err)
	for _, dir := range modules {
		require.Contains(t, documented, dir, "no page has a go get of %s", dir)
		mod, err := os.ReadFile("../../../" + dir + "/go.mod")
		require.NoError(t, err)
		rows := strings.Split(string(contributing), "\n")
		row := rows[max(0, slices.IndexFunc(rows, func(row string) bool {
			imports, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
			return strings.HasPrefix(row, "|") && strings.Contains(imports, "`"+dir+"`")
		}))]
		require.Contains(t, row, "`"+dir+"`", "CONTRIBUTING.md has no row for it")
		requires := regexp.MustCompile(`(?m)^\tgithub.com/outboxgen/outboxgen/(\S+) v`)
		for _, needed := range requires.FindAllStringSubmatch(string(mod), -1) {
			_, replaced, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
			require.Contains(t, replaced, "`"+needed[1]+"`", "%s requires it", dir)
		}
	}
}

// isPublic tells whether users load the module of a folder; that of the root is "". tools/release decides it in the same
// way.
func isPublic(t *testing.T, dir string) bool {
	t.Helper()
	private, err := os.ReadFile("../../../tools/release/private.txt")
	require.NoError(t, err)
	top, _, _ := strings.Cut(dir, "/")
	return !slices.Contains(strings.Fields(string(private)), top) && !strings.HasSuffix(dir, "test")
}

// requirement is a line of a go.mod.
type requirement struct{ module, library, version string }

// requirements returns what the go.mod files require, with the Go version that each of them asks for. It leaves out
// tools: its programs are compiled alone, with the versions of libraries that they were released with.
func requirements(t *testing.T) (all []requirement, language map[string]string) {
	t.Helper()
	language = make(map[string]string)
	line := regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/\S+) (v\S+)(?: // indirect)?$`)
	require.NoError(t, filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2
		if d.IsDir() && (hidden || slices.Contains([]string{"testdata", "bin", "node_modules"}, d.Name())) {
			return filepath.SkipDir
		}
		dir := strings.Trim(strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../../.."), "/")
		if d.Name() != "go.mod" || dir == "tools" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		language[dir] = regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(text))[1]
		text = regexp.MustCompile(`(?s)\nreplace (\(.*?\n\)|[^\n]*)`).ReplaceAll(text, nil)
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			all = append(all, requirement{dir, m[1], m[2]})
		}
		return nil
	}))
	require.Greater(t, len(language), 20)
	require.Greater(t, len(all), 300)
	return all, language
}

// TestOneVersionOfEachLibrary: all modules require a library with one version, so that what one of them has fetched and
// tested serves all of them. A module for an older Go may have an older version, if the newer one does not compile with
// its Go.
func TestOneVersionOfEachLibrary(t *testing.T) {
	t.Parallel()
	all, language := requirements(t)
	newest := slices.Max(slices.Collect(maps.Values(language)))
	first := make(map[string]requirement) // by library
	older := make(map[string]requirement)
	for _, r := range all {
		same := first
		if language[r.module] != newest {
			same = older
		}
		if have, ok := same[r.library]; ok {
			require.Equal(t, have.version, r.version,
				"%s in %s/go.mod and %s/go.mod", r.library, have.module, r.module)
		}
		same[r.library] = r
	}
	for library, old := range older {
		latest, ok := first[library]
		if !ok || latest.version == old.version {
			continue
		}
		needs := goOf(t, latest)
		require.Greater(t, needs, language[old.module], fmt.Sprintf(
			"%s/go.mod requires %s %s, and %s/go.mod %s, which does not need a newer Go",
			old.module, library, old.version, latest.module, latest.version))
	}
}

// goOf returns the Go version that a library asks for, as major.minor. It reads the go.mod in the module cache, because
// the go command that runs may be too old for the module that requires the library.
func goOf(t *testing.T, r requirement) string {
	t.Helper()
	cache, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	require.NoError(t, err)
	path := regexp.MustCompile("[A-Z]").ReplaceAllStringFunc(r.library, func(c string) string { return "!" + strings.ToLower(c) })
	file := filepath.Join(strings.TrimSpace(string(cache)), "cache", "download", filepath.FromSlash(path), "@v", r.version+".mod")
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) { // nobody has built that module here
		out, err := exec.CommandContext(t.Context(), "go", "mod", "download", r.library+"@"+r.version).CombinedOutput()
		require.NoError(t, err, string(out))
		text, err = os.ReadFile(file)
		require.NoError(t, err)
	}
	m := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(text))
	require.NotNil(t, m, file)
	return m[1]
}

// TestUsersLoadOnlyWhatTheyUse: no module that users load, that of the root included, requires one that they do not,
// such as one that has only tests, and no consumer requires a publisher.
func TestUsersLoadOnlyWhatTheyUse(t *testing.T) {
	t.Parallel()
	all, _ := requirements(t)
	users := 0
	for _, r := range all {
		library, ours := strings.CutPrefix(r.library, "github.com/outboxgen/outboxgen/")
		if !isPublic(t, r.module) {
			continue
		}
		users++
		if !ours {
			continue
		}
		require.True(t, isPublic(t, library), "go.mod of %q requires %s", r.module, r.library)
		publisher := strings.HasPrefix(library, "publish/")
		require.False(t, strings.HasPrefix(r.module, "consume/") && publisher, "%s requires %s", r.module, r.library)
	}
	require.Greater(t, users, 50)
}
