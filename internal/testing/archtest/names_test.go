package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documents returns the text of every page, without its code blocks.
func documents(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md"} {
		names, err := filepath.Glob("../../../" + pattern)
		require.NoError(t, err)
		for _, name := range names {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			found[strings.TrimPrefix(filepath.ToSlash(name), "../../../")] = string(fenced.ReplaceAll(text, nil))
		}
	}
	require.Greater(t, len(found), 35)
	return found
}

// vocabulary is what the Go code of the repository declares.
type vocabulary struct {
	packages map[string]map[string]bool // what a package that users import declares, by its name
	members  map[string]map[string]bool // fields and methods, by the name of the type
	used     map[string]bool            // every identifier, and every word of a text, such as the name of an alert
}

var word = regexp.MustCompile(`[A-Z]\w+`)

func readVocabulary(t *testing.T) vocabulary {
	t.Helper()
	v := vocabulary{make(map[string]map[string]bool), make(map[string]map[string]bool), make(map[string]bool)}
	inside := false // a folder that users do not import
	add := func(to map[string]map[string]bool, owner, name string) {
		if inside && owner != "" && !word.MatchString(owner) {
			return
		}
		if to[owner] == nil {
			to[owner] = make(map[string]bool)
		}
		to[owner][name] = true
	}
	require.NoError(t, filepath.WalkDir("../../..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil // a wrong program that a test needs
		}
		pkg := strings.TrimSuffix(file.Name.Name, "_test")
		inside = regexp.MustCompile(`/(internal|ent)/`).MatchString(filepath.ToSlash(name))
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				v.used[n.Name] = true
			case *ast.BasicLit:
				for _, word := range word.FindAllString(n.Value, -1) {
					v.used[word] = true
				}
			case *ast.FuncDecl:
				add(v.packages, pkg, n.Name.Name)
				add(v.members, strings.TrimSuffix(receiver(n), "."), n.Name.Name)
			case *ast.TypeSpec:
				add(v.packages, pkg, n.Name.Name)
				var fields *ast.FieldList
				switch of := n.Type.(type) {
				case *ast.StructType:
					fields = of.Fields
				case *ast.InterfaceType:
					fields = of.Methods
				default:
					return true
				}
				for _, f := range fields.List {
					for _, id := range f.Names {
						add(v.members, n.Name.Name, id.Name)
					}
				}
			case *ast.ValueSpec:
				for _, id := range n.Names {
					add(v.packages, pkg, id.Name)
				}
			}
			return true
		})
		return nil
	}))
	require.Greater(t, len(v.packages), 60)
	return v
}

// others are names in the documents that belong to others.
var others = []string{
	"AddMessages", "GlobalLimit", "JsonConverter", "LoadLocation", "LocalLimit", "PubSub", "SetLogger", "TimeoutStopSec",
	"TurnFinalizedV1", "TurnFinalizedV1Usage", "TurnFinalizedV2", "WrapRegistererWith",
}

// TestNamesInDocuments: each exported name of Go that a page mentions exists: `Wake` somewhere, `queue.Config` in a
// package of that name, and the setting `Config.Wake` in a type of that name.
func TestNamesInDocuments(t *testing.T) {
	t.Parallel()
	v := readVocabulary(t)
	span := regexp.MustCompile("`((?:[a-z]+\\.)?[A-Z][A-Za-z0-9]+(?:\\.[A-Z][A-Za-z0-9]+)*)(?:\\([^`]*\\))?`")
	seen := 0
	for page, text := range documents(t) {
		for _, m := range span.FindAllStringSubmatch(text, -1) {
			parts := strings.Split(m[1], ".")
			for i, name := range parts {
				if strings.ToLower(name[:1]) == name[:1] || slices.Contains(others, name) || strings.ToUpper(name) == name {
					continue
				}
				seen++
				require.True(t, v.used[name], "%s names `%s`, and nothing in the code is called %s", page, m[1], name)
				if i == 0 {
					continue
				}
				if known := v.packages[parts[i-1]]; i == 1 && known != nil && strings.ToLower(parts[0][:1]) == parts[0][:1] {
					require.True(t, known[name], "%s names `%s`, which package %s does not declare", page, m[1], parts[0])
				} else if known := v.members[parts[i-1]]; strings.HasSuffix(parts[i-1], "Config") {
					require.True(t, known[name], "%s names `%s`: no type %s has that field or method", page, m[1], parts[i-1])
				}
			}
		}
	}
	require.Greater(t, seen, 1000)
}

// TestMetricsInDocuments: a metric that a page, an alert or a panel names is one of telemetry/prometheus. The test of
// that module compares them with the tables of docs/operate/telemetry.md.
func TestMetricsInDocuments(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`\b(?:outboxgen_[a-z_]+|outbox_[a-z_]+_(?:seconds|total|bytes))\b`)
	known := make(map[string]bool)
	texts := documents(t)
	for _, folder := range []string{"telemetry/prometheus", "internal/tool/alerts"} {
		files, err := filepath.Glob("../../../" + folder + "/*.go")
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			switch {
			case strings.HasSuffix(file, "_test.go"):
			case folder == "telemetry/prometheus":
				for _, m := range name.FindAllString(string(text), -1) {
					known[m] = true
				}
			default:
				texts[filepath.Base(file)] = string(text)
			}
		}
	}
	require.Greater(t, len(known), 30)
	for page, text := range texts {
		for _, m := range name.FindAllString(text, -1) {
			histogram := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(m, "")
			require.True(t, known[m] || known[histogram], "%s names the metric %s, which does not exist", page, m)
		}
	}
}
