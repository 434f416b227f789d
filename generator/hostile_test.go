package generator_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
)

// hostile are texts that mean something else in Go, in SQL, in a terminal, in a file name or in YAML.
var hostile = []struct{ name, text string }{
	{"newline", "a\nfunc Injected() {}\nvar _ = 1"},
	{"backtick", "a` + Injected() + `"},
	{"comment", "a */ func Injected() {} /* b"},
	{"directive", "//go:embed secrets"},
	{"build", "//go:build ignore\n\npackage main"},
	{"quote", `a" + Injected() + "`},
	{"sql", `a'; DROP SCHEMA outbox; --`},
	{"bidi", "a\u202e\u2066b\u2069\u200f\u061c"},
	{"invisible", "a\u200b\ufeff\u00ad\u2028\u2029b"},
	{"terminal", "a\x1b[31m\x07\x00\x7f"},
	{"path", "../../../etc/passwd"},
	{"header", "a\r\nX-Injected: b"},
	{"format", "%s%n{{.}}${HOME}{tenant_id}"},
	{"number", "99999999999999999999999999"},
	{"long", strings.Repeat("x", 5000)},
}

// hostileSources are the cases into which they are put, which have all keys between them.
var hostileSources = []string{"docs", "publish", "publish-amqp-redis", "consumer-types", "operations", "listeners", "limits", "attribute-bounds", "publish-custom"}

// places calls visit with each scalar of a YAML file, and with where it stands: names of things are *.
func places(n *yaml.Node, at string, visit func(at string, scalar *yaml.Node)) {
	switch n.Kind {
	case yaml.DocumentNode:
		places(n.Content[0], at, visit)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			places(item, at+"[]", visit)
		}
	case yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i]
			name := key.Value
			if named.MatchString(at) {
				name = "*"
			}
			visit(strings.TrimPrefix(at+"."+name, ".")+" (key)", key)
			places(n.Content[i+1], strings.TrimPrefix(at+"."+name, "."), visit)
		}
	case yaml.ScalarNode:
		visit(at, n)
	}
}

// named are the mappings whose keys are names.
var named = regexp.MustCompile(`(^|\.)(namespaces|types|topics|listeners|operations|outcomes|fields|payload|headers)$`)

// TestHostileTexts: with each hostile text in each place of outbox.yaml there are findings, or Go without a declaration, a
// directive or a character that the text has brought in. testdata/hostile-text/places.txt has the rules of the findings for each place and
// text. A campaign takes up to three topics, fields and so on of each case; otherwise each place is taken once.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	said := make(map[string]map[string]bool) // place and text: rules, or "Go"
	cases, seen := 0, make(map[string]int)
	for _, name := range hostileSources {
		source, err := os.ReadFile("testdata/" + name + "/outbox.yaml")
		require.NoError(t, err)
		var file yaml.Node
		require.NoError(t, yaml.Unmarshal(source, &file))
		if all() {
			clear(seen)
		}
		places(&file, "", func(at string, scalar *yaml.Node) {
			if seen[at]++; seen[at] > campaign.Of(1, 3) {
				return
			}
			was := *scalar
			for _, h := range hostile {
				*scalar = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: h.text}
				text, err := yaml.Marshal(&file)
				require.NoError(t, err)
				cases++
				files, err := generator.Generate(text, generator.Options{})
				if said[at] == nil {
					said[at] = make(map[string]bool)
				}
				if err == nil {
					said[at][h.name+"=Go"] = true
					requireHarmless(t, files, at+", "+h.name)
					continue
				}
				var findings diag.List
				require.ErrorAs(t, err, &findings, "%s, %s", at, h.name)
				require.NotContains(t, err.Error(), "\x1b", "%s, %s", at, h.name)
				require.False(t, strings.ContainsFunc(err.Error(), mark), "%s, %s: %q", at, h.name, err.Error())
				require.Less(t, len(err.Error()), 20_000, "%s, %s", at, h.name)
				for _, f := range findings {
					if f.Severity == diag.Error {
						said[at][h.name+"="+string(f.Rule)] = true
						break
					}
				}
			}
			*scalar = was
		})
	}
	require.Greater(t, cases, campaign.Of(2_000, 10_000))
	const golden = "testdata/hostile-text/places.txt"
	if flag.Lookup("update").Value.String() == "true" {
		require.True(t, all(), "set OUTBOXGEN_TEST_CAMPAIGN to write "+golden)
		require.NoError(t, os.WriteFile(golden, []byte(tableOf(said)), 0o600))
		return
	}
	text, err := os.ReadFile(golden)
	require.NoError(t, err)
	if all() {
		require.Equal(t, string(text), tableOf(said))
		return
	}
	want := readTable(string(text))
	for at := range said {
		for outcome := range said[at] {
			require.True(t, want[at][outcome], "%s: %s is not in %s: run the campaign", at, outcome, golden)
		}
	}
}

// all reports whether this is a campaign.
func all() bool { return campaign.Of(0, 1) == 1 }

// tableOf writes for each place the rules of the findings, each with the texts that it refuses.
func tableOf(said map[string]map[string]bool) string {
	var table strings.Builder
	for _, at := range slices.Sorted(maps.Keys(said)) {
		by := make(map[string][]string)
		for outcome := range said[at] {
			text, rule, _ := strings.Cut(outcome, "=")
			by[rule] = append(by[rule], text)
		}
		fmt.Fprintf(&table, "%s\n", at)
		for _, rule := range slices.Sorted(maps.Keys(by)) {
			slices.Sort(by[rule])
			texts := strings.Join(by[rule], " ")
			if len(by[rule]) == len(hostile) {
				texts = "all"
			}
			fmt.Fprintf(&table, "  %s: %s\n", rule, texts)
		}
	}
	return table.String()
}

// readTable is the inverse of tableOf.
func readTable(table string) map[string]map[string]bool {
	said := make(map[string]map[string]bool)
	at := ""
	for line := range strings.Lines(table) {
		line = strings.TrimSuffix(line, "\n")
		rule, texts, isRule := strings.Cut(strings.TrimPrefix(line, "  "), ": ")
		if !strings.HasPrefix(line, "  ") || !isRule {
			at = line
			said[at] = make(map[string]bool)
			continue
		}
		for _, h := range hostile {
			if texts == "all" || slices.Contains(strings.Fields(texts), h.name) {
				said[at][h.name+"="+rule] = true
			}
		}
	}
	return said
}

// mark reports whether r changes how a text is read without being seen: bidirectional marks, and what is not printed.
func mark(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.In(r, unicode.Zl, unicode.Zp))
}

var directive = regexp.MustCompile(`(?m)^\s*//(go:|line |export |\s*\+build)`)

// requireHarmless checks that files declare nothing called Injected, and have no mark and no directive.
func requireHarmless(t *testing.T, files []generator.File, what string) {
	t.Helper()
	for _, f := range files {
		require.False(t, strings.ContainsFunc(string(f.Content), mark), "%s: a mark in %s", what, f.Name)
		require.NotContains(t, f.Name, "..", what)
		if !strings.HasSuffix(f.Name, ".go") {
			continue
		}
		for _, line := range directive.FindAllString(string(f.Content), -1) {
			require.Equal(t, "//go:", strings.TrimSpace(line), what)
			require.Equal(t, "generate.go", f.Name[strings.LastIndex(f.Name, "/")+1:], "%s: a directive in %s", what, f.Name)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name, f.Content, parser.SkipObjectResolution)
		require.NoError(t, err, "%s: %s", what, f.Name)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				require.NotContains(t, id.Name, "Injected", "%s: %s", what, f.Name)
			}
			return true
		})
	}
}
