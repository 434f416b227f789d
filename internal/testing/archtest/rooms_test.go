package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const architecture = "docs/inside/architecture.md"

// notRooms are the folders of the root whose code nobody imports.
var notRooms = []string{"bench", "docs", "examples", "site", "tools"}

// roomOf returns the room of a package of this repository, by its folder.
func roomOf(folder string) string {
	parts := strings.Split(folder, "/")
	for _, part := range parts {
		if strings.HasSuffix(part, "test") {
			return "tests"
		}
	}
	switch {
	case parts[0] != "internal" || len(parts) == 1:
		return parts[0]
	case parts[1] == "testing":
		return "tests"
	}
	return "internal/" + parts[1]
}

// sources returns the imports of each package of all modules, by its folder, without those of its tests. Packages that
// a generator has written are left out, if leaveOut says so.
func sources(t *testing.T) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	require.NoError(t, filepath.WalkDir("../../..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside := strings.TrimPrefix(filepath.ToSlash(name), "../../../")
		if entry.IsDir() {
			if entry.Name() == "testdata" || strings.HasPrefix(inside, ".git") || slices.Contains(notRooms, inside) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		folder := path.Dir(inside)
		if found[folder] == nil {
			found[folder] = []string{}
		}
		if strings.HasSuffix(name, "_test.go") {
			return nil // a package of tests only is one, too
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imported := range file.Imports {
			if ours, ok := strings.CutPrefix(strings.Trim(imported.Path.Value, `"`), module); ok {
				found[folder] = append(found[folder], ours)
			}
		}
		return nil
	}))
	require.Greater(t, len(found), 60)
	return found
}

// arrows returns which rooms each room imports, with a package that does.
func arrows(t *testing.T) map[string]map[string]string {
	t.Helper()
	found := make(map[string]map[string]string)
	for folder, imports := range sources(t) {
		from := roomOf(folder)
		if found[from] == nil {
			found[from] = make(map[string]string)
		}
		for _, imported := range imports {
			if to := roomOf(imported); to != from {
				found[from][to] = folder + " imports " + imported
			}
		}
	}
	return found
}

// page returns a section of docs/inside/architecture.md; "" means what stands before the first one.
func page(t *testing.T, section string) string {
	t.Helper()
	text, err := os.ReadFile("../../../" + architecture)
	require.NoError(t, err)
	found := string(text)
	if section != "" {
		_, after, ok := strings.Cut(found, "\n## "+section+"\n")
		require.True(t, ok, "%s has no section %q", architecture, section)
		found = after
	}
	found, _, _ = strings.Cut(found, "\n## ")
	return found
}

// layers returns the rooms of the picture, the highest line first.
func layers(t *testing.T) (lines [][]string) {
	t.Helper()
	_, picture, ok := strings.Cut(page(t, ""), "```text\n")
	require.True(t, ok, "%s has no picture", architecture)
	picture, _, _ = strings.Cut(picture, "```")
	for line := range strings.Lines(picture) {
		rooms, _, _ := strings.Cut(line, "|")
		lines = append(lines, strings.Fields(rooms))
	}
	return lines
}

// TestLayers: the rooms of the picture are those of the repository, and each imports only rooms on lines below its own.
func TestLayers(t *testing.T) {
	t.Parallel()
	height := make(map[string]int)
	for i, line := range layers(t) {
		for _, room := range line {
			require.NotContains(t, height, room, "the picture has it twice")
			height[room] = -i
		}
	}
	real := arrows(t)
	require.ElementsMatch(t, slices.Collect(maps.Keys(real)), slices.Collect(maps.Keys(height)),
		"the picture of %s has other rooms than the tree", architecture)
	for from, imports := range real {
		for to, example := range imports {
			require.Less(t, height[to], height[from], "an arrow runs up: %s. Move the package, or the room in the picture",
				example)
		}
	}
}

// TestArrows: the table of arrows says exactly which rooms import which. With -update the test writes it. The room tests has no
// line: it may import every room, and no room imports it.
func TestArrows(t *testing.T) {
	t.Parallel()
	real := arrows(t)
	table := "| room | imports |\n|---|---|\n"
	for _, from := range slices.Sorted(maps.Keys(real)) {
		require.True(t, from == "tests" || real[from]["tests"] == "", real[from]["tests"])
		if from != "tests" {
			line := "| `" + from + "` |"
			for _, to := range slices.Sorted(maps.Keys(real[from])) {
				line += " `" + to + "`"
			}
			table += line + " |\n"
		}
	}
	drawn := regexp.MustCompile(`(?m)^\| room \| imports \|\n(\|.*\n)+`)
	text, err := os.ReadFile("../../../" + architecture)
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("../../../"+architecture, drawn.ReplaceAllLiteral(text, []byte(table)), 0o600))
		return
	}
	require.Equal(t, table, drawn.FindString(string(text)), "the arrows have changed: are they right? Then run this test with -update")
}

// TestRooms: internal has at most nine folders, and each package has one line on the page, with a sentence.
func TestRooms(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("../../../internal")
	require.NoError(t, err)
	require.LessOrEqual(t, len(entries), 9,
		"a tenth room under internal: find the place of its packages in one of the others")
	listed := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\| ([^|]*) \\|$").FindAllStringSubmatch(page(t,
		"Packages"), -1) {
		for _, name := range strings.Split(m[1], ", ") {
			name = strings.Trim(name, "`")
			require.NotContains(t, listed, name, "two lines about one package")
			listed[name] = m[2]
		}
	}
	for folder := range sources(t) {
		if generated(folder) {
			continue
		}
		require.Greater(t, len(strings.Fields(listed[folder])), 1, "%s has no line about the package %s",
			architecture, folder)
		delete(listed, folder)
	}
	require.Empty(t, listed, "%s has lines about packages that do not exist", architecture)
}

// generated reports whether a generator has written a package, ours or that of ent.
func generated(folder string) bool {
	return strings.HasPrefix(folder, "sqltx/drivertest/")
}

// TestWalk: each file that the walks name exists, and declares what the same step names.
func TestWalk(t *testing.T) {
	t.Parallel()
	walks := strings.Split(page(t, "Walks"), "\n### ")[1:]
	require.Len(t, walks, 4)
	span := regexp.MustCompile("`([^`]+)`")
	for _, walk := range walks {
		title, text, _ := strings.Cut(walk, "\n")
		steps := regexp.MustCompile(`(?m)^\d+\. `).Split(text, -1)[1:]
		require.GreaterOrEqual(t, len(steps), 8, title)
		require.LessOrEqual(t, len(steps), 10, title)
		for i, step := range steps {
			declared, names := make(map[string]bool), []string(nil)
			for _, m := range span.FindAllStringSubmatch(step, -1) {
				if strings.Contains(m[1], "/") {
					maps.Copy(declared, declarations(t, m[1]))
				} else {
					names = append(names, m[1])
				}
			}
			for _, name := range names {
				require.True(t, declared[name], "%s, step %d: no file of the step declares %s", title, i+1, name)
			}
		}
	}
}

// declarations returns what a file declares: functions, methods as Type.Method, types, variables; or the queries of
// SQL.
func declarations(t *testing.T, name string) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	text, err := os.ReadFile("../../../" + name)
	require.NoError(t, err, "%s names it", architecture)
	if strings.HasSuffix(name, ".sql") {
		for _, m := range regexp.MustCompile(`(?m)^-- name: (\w+)`).FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
		}
		return found
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
	require.NoError(t, err)
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			found[receiver(decl)+decl.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range decl.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					found[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, id := range s.Names {
						found[id.Name] = true
					}
				}
			}
		}
	}
	return found
}

// receiver returns "Type." of a method, and "" of a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}

// TestWhereThingsGo: each path, test and name of the recipes in CONTRIBUTING.md exists. A name is declared in a file of
// its recipe, and in that file if the recipe says "`X` of `F`" or "`X` and `Y` in `F`".
func TestWhereThingsGo(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../CONTRIBUTING.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(text), "\n## Where things go\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	recipes := regexp.MustCompile(`(?m)^\*\*`).Split(section, -1)
	require.Len(t, recipes, 11, "ten recipes")
	for _, recipe := range recipes {
		require.True(t, recipe == recipes[0] || strings.Contains(recipe, "*Told by*"), "no test is named: %s", recipe)
		declared := make(map[string]bool)
		var names []string
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(recipe, -1) {
			name := m[1]
			switch test := testName.FindStringSubmatch("`" + name + "`"); {
			case test != nil:
				require.True(t, testsOf(t, test[1])[test[2]], "%s has no test %s", test[1], test[2])
			case strings.HasSuffix(name, ".txtar"):
				require.FileExists(t, "../../../cmd/outboxgen/testdata/script/"+name)
			case strings.Contains(name, "/"):
				info, err := os.Stat("../../../" + name)
				require.NoError(t, err, "a recipe names it")
				if ext := path.Ext(name); !info.IsDir() && (ext == ".go" || ext == ".sql") {
					maps.Copy(declared, declarations(t, name))
				}
			case regexp.MustCompile(`^[A-Za-z]\w*(\.\w+)?$`).MatchString(name):
				names = append(names, name)
			}
		}
		for _, name := range names {
			require.True(t, declares(declared, name), "no file of the recipe declares %s: %s", name, recipe)
		}
		namesOfFile := regexp.MustCompile("((?:`[A-Za-z][\\w.]*`(?:, | and |, and ))*`[A-Za-z][\\w.]*`) (?:in|of) `([^`]+/[^`]+\\.(?:go|sql))`")
		for _, m := range namesOfFile.FindAllStringSubmatch(strings.Join(strings.Fields(recipe), " "), -1) {
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(m[1], -1) {
				require.True(t, declares(declarations(t, m[2]), name[1]), "%s does not declare %s", m[2], name[1])
			}
		}
	}
}

// declares reports whether name, with or without the type of which it is a method, is declared.
func declares(declared map[string]bool, name string) bool {
	found := declared[name]
	for known := range declared {
		found = found || strings.HasSuffix(known, "."+name)
	}
	return found
}
