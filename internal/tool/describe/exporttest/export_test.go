package exporttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/sample"
	"github.com/outboxgen/outboxgen/internal/testing/campaign"
	"github.com/outboxgen/outboxgen/internal/testing/randomyaml"
	"github.com/outboxgen/outboxgen/internal/tool/describe"
	"github.com/outboxgen/outboxgen/internal/tool/payloadcheck"
	"github.com/outboxgen/outboxgen/payload"
)

// models returns the models of all golden YAML files, and of the one for exports.
func models(t testing.TB) map[string]*model.Model {
	t.Helper()
	sources, err := filepath.Glob("../../../../generator/testdata/*/outbox.yaml")
	require.NoError(t, err)
	all := make(map[string]*model.Model)
	for _, source := range append(sources, "../testdata/outbox.yaml") {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		frozen, err := os.ReadFile(generator.LockName(source))
		if err != nil {
			frozen = nil
		}
		if m, _ := generator.Load(text, generator.Options{Source: filepath.Base(source), Lock: frozen}); m != nil {
			all[filepath.Base(filepath.Dir(source))] = m
		}
	}
	require.Greater(t, len(all), 20)
	return all
}

// compile compiles a schema, which validates it against the meta-schema of its dialect.
func compile(t testing.TB, text []byte) *jsonschema.Schema {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("https://example.com/x.json", value))
	s, err := c.Compile("https://example.com/x.json")
	require.NoError(t, err, "%s", text)
	return s
}

func accepts(t testing.TB, s *jsonschema.Schema, payload []byte) error {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	require.NoError(t, err)
	return s.Validate(value)
}

type chance struct{ *rand.Rand }

func (c chance) Present() bool   { return c.IntN(2) == 0 }
func (c chance) Value(n int) int { return c.IntN(n) }
func (c chance) Enum(n int) int  { return c.IntN(n) }

// cases are payloads of a topic that are valid, and mutants of them that are not, by the rules of Validate.
type cases struct {
	Name    string          `json:"name"`
	Schema  json.RawMessage `json:"schema"`
	Valid   []string        `json:"valid"`
	Invalid []string        `json:"invalid"`
}

// casesOf makes payloads of t, and changes each value in each of them. payloadcheck.Check has the rules of the generated Validate, which
// generator.TestWireClass and internal/tool/payloadcheck compare. `make test` takes some of the mutants.
func casesOf(t testing.TB, name string, topic *model.Topic) cases {
	t.Helper()
	schema, err := describe.JSONSchema(describe.KindOf(topic), "https://example.com/")
	require.NoError(t, err)
	c := cases{name + ": " + topic.FullName(), schema, []string{}, []string{}}
	random := chance{rand.New(rand.NewPCG(1, 2))}
	payloads := sample.Payloads(topic.Fields)
	payloads = append(payloads, sample.Payload(topic.Fields, random))
	for _, payload := range payloads {
		require.Empty(t, payloadcheck.Check(topic, payload))
		c.Valid = append(c.Valid, string(payload))
	}
	decoder := json.NewDecoder(bytes.NewReader(payloads[0]))
	decoder.UseNumber()
	var value any
	require.NoError(t, decoder.Decode(&value))
	all := 0
	mutate(value, func(bool) { all++ })
	every, at := max(1, all/campaign.Of(60, 2000)), 0
	mutate(value, func(empty bool) {
		if at++; at%every != 0 {
			return
		}
		text, err := json.Marshal(value)
		require.NoError(t, err)
		faults := payloadcheck.Check(topic, text)
		switch {
		case slices.ContainsFunc(faults, inexpressible):
		case len(faults) == 0 && empty: // an optional value that is empty counts as absent, and is not written
		case len(faults) == 0:
			c.Valid = append(c.Valid, string(text))
		default:
			c.Invalid = append(c.Invalid, string(text))
		}
	})
	return c
}

// inexpressible reports whether a schema need not find a fault: a version may get fields, and a schema cannot count bytes.
func inexpressible(f payload.FieldError) bool {
	return f.Rule == "unknown" || strings.HasSuffix(f.Rule, "_len") && strings.Contains(f.Message, "byte")
}

// replacements are values of every kind. null is not among them: an optional field that is null counts as absent for Validate, but
// nothing that we generate writes it.
var replacements = []any{
	map[string]any{}, []any{}, json.Number("5"), json.Number("-7"), json.Number("1.5"), json.Number("99999999999999999999"), json.Number("2147483648"),
	true, "", "some text", strings.Repeat("x", 300), "00000000-0000-0000-0000-000000000000", "0190d5a5-7c2e-7d6b-8d3c-9b1f6a2e4c7", "0001-01-01T00:00:00Z",
	"2026-01-02", "2026-02-30", "2026-1-2", "2026-01-02 15:04:05Z", "YWJj", "YWJ", []any{json.Number("1")}, []any{"x"},
}

// mutate changes value in one place after the other and calls check each time. empty says that the new value is.
func mutate(value any, check func(empty bool)) {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			old := v[name]
			delete(v, name)
			check(false)
			for i, r := range replacements {
				v[name] = r
				check(i < 2 || r == "")
			}
			v[name] = old
			mutate(old, check)
			if list, is := old.([]any); is && len(list) > 0 {
				v[name] = append(slices.Clone(list), list...)
				check(false)
				v[name] = old
			}
		}
	case []any:
		for i, old := range v {
			for _, r := range replacements {
				v[i] = r
				check(false)
			}
			v[i] = old
			mutate(old, check)
		}
	}
}

// allCases returns the cases of every golden topic, in a fixed order.
func allCases(t testing.TB, found map[string]*model.Model) (all []cases) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(found)) {
		for _, n := range found[name].Namespaces {
			for _, topic := range n.Topics {
				all = append(all, casesOf(t, name, topic))
			}
		}
	}
	return all
}

// TestJSONSchemas: the schema of every golden topic is valid by the meta-schema. It accepts what Validate accepts, and refuses
// what Validate refuses.
func TestJSONSchemas(t *testing.T) {
	t.Parallel()
	valid, invalid := 0, 0
	for _, c := range allCases(t, models(t)) {
		s := compile(t, c.Schema)
		for _, text := range c.Valid {
			valid++
			require.NoError(t, accepts(t, s, []byte(text)), "%s\n%s", c.Name, text)
		}
		for _, text := range c.Invalid {
			invalid++
			require.Error(t, accepts(t, s, []byte(text)), "%s\n%s", c.Name, text)
		}
	}
	t.Logf("%d valid and %d invalid payloads", valid, invalid)
	require.Greater(t, valid, 300)
	require.Greater(t, invalid, 1000)
}

// TestJSONSchemaOfAll: the document with all payloads accepts each of them, and the schemas of older versions are valid.
func TestJSONSchemaOfAll(t *testing.T) {
	t.Parallel()
	for name, m := range models(t) {
		kinds := describe.Kinds(m)
		if len(kinds) == 0 {
			continue
		}
		text, err := describe.JSONSchemas(kinds, "https://example.com/")
		require.NoError(t, err)
		all := compile(t, text)
		for _, k := range kinds {
			text, err := describe.JSONSchema(k, "https://example.com/")
			require.NoError(t, err)
			one := compile(t, text)
			if k.Version == k.Topic.Version {
				for _, payload := range sample.Payloads(k.Topic.Fields) {
					require.NoError(t, accepts(t, all, payload), name)
				}
				continue
			}
			for _, past := range k.Topic.History {
				if past.Version == k.Version {
					for _, payload := range sample.Payloads(past.Fields) {
						require.NoError(t, accepts(t, one, payload), name)
					}
				}
			}
		}
	}
}

// pattern is a pattern of a YAML and texts that may match it.
type pattern struct {
	Pattern string   `json:"pattern"`
	Matches []string `json:"matches"`
	Others  []string `json:"others"`
}

// patterns have what Go's regular expressions have and those of ECMA-262 do not, or have with another meaning.
var patterns = []string{
	`^[a-z]{3}-\d{2,4}$`, `^(yes|no)$`, `(?i)^straße|k$`, `^\s*x\S$`, `^.{2}$`, `(?s)^.{2}$`, `\Aab\z`, `(?m)^b$`, `^\p{Lu}\p{Ll}+$`, `^[\p{L}\p{N} .-]+$`,
	`^\P{L}+$`, `^\p{Greek}+$`, `^[[:alpha:]_]+$`, `^[[:^digit:]]$`, `\Qa.b\E`, `^(?P<n>a)(?:b)?$`, `^[^a-z\]\-^]$`, `^a\.b/c\\d$`, `\bfoo\b`, `^\Boo`,
	`^(a|b|)*c{0}d{2,}$`, `^\x{1F600}-?[\x{1F600}-\x{1F64F}]$`, `^[\t\n ]$`, `^a*?b+?$`, `^(?:a{2}){2}$`, `^$`, ``, `[^\x00-\x{10FFFF}]`, `^#!"%&',:;<=>@_` + "`" + `~$`,
	`^\w+\W\D$`, `^(?i:a)B$`, `(^|x)a($|y)`, `^{`, `^a{,2}$`,
	`^(?:yes|no)-x$`,
}

// texts are tried with each pattern.
var texts = []string{
	"", "a", "b", "c", "d", "dd", "ab", "aB", "AB", "aaaa", "aab", "abc-12", "abc-12345", "yes", "yes\n", "NO", "Straße", "STRASSE", "STRAßE", "K", "\u212a", " x1",
	"\u00a0x1", "\u00a0x\u00a0", "ab\n", "a\nb\nc", "\n", "\r", "\u2028\u2029", "\u2028", "Łódź", "Zoë 1.-", "ΑΩ", "αβγ", "_x", "5", "é", "-", "^", "]", "a.b", "axb",
	"a.b/c\\d", "foo", "a foo!", "éfooé", "oo", "xoo", "😀-😁", "😀😁", "\t", "#!\"%&',:;<=>@_`~", "ab-x", "xa", "xay", "a\u0085", "\u0085\u0085", "{", "a{,2}", "ſ", "s", "ꝏ", "ab c", "yes-x", "no-x", "-x",
}

func patternCases(t testing.TB) (all []pattern) {
	t.Helper()
	for _, text := range patterns {
		m, findings := generator.Load(fmt.Appendf(nil, `
version: "1"
package: events
namespaces: {a: {topics: {b: {payload: {c: {type: string, pattern: %s}}}}}}
`, quoteYAML(text)), generator.Options{})
		require.NoError(t, findings.Err(), text)
		schema, err := describe.JSONSchema(describe.KindOf(m.Namespaces[0].Topics[0]), "")
		require.NoError(t, err)
		var read struct {
			Properties struct{ C struct{ Pattern string } }
		}
		require.NoError(t, json.Unmarshal(schema, &read))
		p := pattern{Pattern: read.Properties.C.Pattern, Matches: []string{}, Others: []string{}}
		for _, try := range texts {
			if regexp.MustCompile(text).MatchString(try) {
				p.Matches = append(p.Matches, try)
			} else {
				p.Others = append(p.Others, try)
			}
		}
		all = append(all, p)
	}
	return all
}

func quoteYAML(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// TestPatternsInGo: the patterns of schemas that Go can read match what those of the YAML match.
func TestPatternsInGo(t *testing.T) {
	t.Parallel()
	read := 0
	for _, p := range patternCases(t) {
		re, err := regexp.Compile(p.Pattern)
		if err != nil {
			continue // it has something of ECMA-262 that Go does not have
		}
		read++
		for _, text := range p.Matches {
			require.True(t, re.MatchString(text), "%s: %q", p.Pattern, text)
		}
		for _, text := range p.Others {
			require.False(t, re.MatchString(text), "%s: %q", p.Pattern, text)
		}
	}
	require.Greater(t, read, len(patterns)-3)
}

// TestOfficialTools checks exports with Ajv and with the parser of the AsyncAPI project.
func TestOfficialTools(t *testing.T) {
	t.Parallel()
	modules, err := filepath.Abs("../../../../bin/npm/node_modules")
	require.NoError(t, err)
	if _, err := os.Stat("../../../../bin/npm/installed"); err != nil {
		t.Skip("the tools of npm are missing: tools/need.sh asyncapi installs them")
	}
	type document struct {
		Name string `json:"name"`
		Text string `json:"text"`
	}
	var input struct {
		Schemas   []cases    `json:"schemas"`
		Documents []document `json:"documents"`
		Patterns  []pattern  `json:"patterns"`
	}
	found := models(t)
	maps.DeleteFunc(found, func(name string, _ *model.Model) bool { // the tools take their time
		return campaign.Of(1, 0) == 1 && !slices.Contains([]string{"all-types", "history", "publish", "testdata", "wire-name"}, name)
	})
	input.Schemas, input.Patterns = allCases(t, found), patternCases(t)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		m := found[name]
		kinds := describe.Kinds(m)
		if len(kinds) == 0 {
			continue
		}
		for _, encoding := range describe.Encodings() {
			text, err := describe.AsyncAPI(m, describe.AsyncAPIConfig{Version: "1.0.0", Encoding: encoding})
			require.NoError(t, err)
			input.Documents = append(input.Documents, document{name + ", " + string(encoding), string(text)})
		}
		text, err := describe.JSONSchemas(kinds, "https://example.com/")
		require.NoError(t, err)
		input.Schemas = append(input.Schemas, cases{name, text, []string{}, []string{}})
	}
	// Random files: they have every key of a topic in many combinations.
	sources := rapid.Custom(randomyaml.Source)
	for seed := range campaign.Of(3, 100) {
		m, findings := generator.Load([]byte(sources.Example(seed)), generator.Options{Source: "outbox.yaml"})
		require.NotNil(t, m, "%v", findings)
		encoding := describe.Encodings()[seed%len(describe.Encodings())]
		text, err := describe.AsyncAPI(m, describe.AsyncAPIConfig{Version: "1.0.0", Encoding: encoding})
		require.NoError(t, err)
		input.Documents = append(input.Documents, document{fmt.Sprintf("random %d, %s", seed, encoding), string(text)})
		if kinds := describe.Kinds(m); len(kinds) > 0 {
			text, err := describe.JSONSchemas(kinds, "https://example.com/")
			require.NoError(t, err)
			input.Schemas = append(input.Schemas, cases{fmt.Sprintf("random %d", seed), text, []string{}, []string{}})
		}
	}
	// What the tools must find, so that their silence says something.
	input.Documents = append(input.Documents, document{"broken document", strings.Replace(input.Documents[0].Text, `"action": "send"`, `"action": "emit"`, 1)})
	input.Schemas = append(input.Schemas, cases{"broken schema", json.RawMessage(`{"type": "string"}`), []string{"5"}, []string{`"x"`}})
	text, err := json.Marshal(input)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "node", "validate.js")
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	faults := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, faults, 4, "%s", out)
	require.Contains(t, faults[0], "broken schema: refuses 5")
	require.Contains(t, faults[1], "broken schema: accepts")
	require.Contains(t, faults[2], "broken document: ")
	t.Logf("%d schemas, %d documents, %d patterns", len(input.Schemas), len(input.Documents), len(input.Patterns))
}
