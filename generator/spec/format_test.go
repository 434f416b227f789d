package spec_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

var update = flag.Bool("update", false, "record testdata/format")

// TestFormat compares the layouts of testdata/format: each .in.yaml with its .want.yaml.
func TestFormat(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob("testdata/format/*.in.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, inputs)
	for _, input := range inputs {
		source, err := os.ReadFile(input)
		require.NoError(t, err)
		got, err := spec.Format(source, filepath.Base(input))
		require.NoError(t, err, input)
		golden := strings.TrimSuffix(input, ".in.yaml") + ".want.yaml"
		if *update {
			require.NoError(t, os.WriteFile(golden, got, 0o644))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), input)
		requireStable(t, got)
		crlf := bytes.ReplaceAll(source, []byte("\n"), []byte("\r\n"))
		got, err = spec.Format(crlf, input)
		require.NoError(t, err, input)
		require.Equal(t, strings.ReplaceAll(string(want), "\n", "\r\n"), string(got), "line ends are kept")
	}
}

func requireStable(t require.TestingT, text []byte) {
	again, err := spec.Format(text, "outbox.yaml")
	require.NoError(t, err)
	require.Equal(t, string(text), string(again), "formatted text is not changed")
}

// TestFormatTestdata: every YAML of the tests that can be read can be formatted, and says the same afterwards.
func TestFormatTestdata(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("../testdata/*/outbox.yaml")
	require.NoError(t, err)
	more, err := filepath.Glob("../../examples/*/*/outbox.yaml")
	require.NoError(t, err)
	formatted := 0
	for _, path := range append(append(sources, more...), "testdata/full.yaml") {
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		_, findings := spec.Decode(source, path)
		got, err := spec.Format(source, path)
		if findings.HasErrors() {
			require.Equal(t, error(findings), err, path)
			continue
		}
		require.NoError(t, err, path)
		requireStable(t, got)
		formatted++
	}
	require.Greater(t, formatted, 50)
}

// TestFormatKeepsWhatTheFileSays: whatever the layout, the comments and the order of keys, the Spec and the comments stay, and
// formatted text stays as it is.
func TestFormatKeepsWhatTheFileSays(t *testing.T) {
	t.Parallel()
	var sources [][]string
	for _, pattern := range []string{"../testdata/*/outbox.yaml", "testdata/format/*.yaml", "testdata/full.yaml"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, path := range paths {
			source, err := os.ReadFile(path)
			require.NoError(t, err)
			if _, findings := spec.Decode(source, path); !findings.HasErrors() && len(source) < 5000 {
				sources = append(sources, strings.Split(strings.TrimSuffix(string(source), "\n"), "\n"))
			}
		}
	}
	formatted := 0
	rapid.Check(t, func(t *rapid.T) {
		text := mutated(t, rapid.SampledFrom(sources).Draw(t, "source"))
		before, findings := spec.Decode([]byte(text), "outbox.yaml")
		if findings.HasErrors() {
			_, err := spec.Format([]byte(text), "outbox.yaml")
			require.Error(t, err)
			return
		}
		got, err := spec.Format([]byte(text), "outbox.yaml")
		require.NoError(t, err, text)
		after, _ := spec.Decode(got, "outbox.yaml")
		require.Equal(t, said(t, before), said(t, after), text)
		require.Equal(t, strings.Count(text, "COMMENT"), strings.Count(string(got), "COMMENT"), text)
		requireStable(t, got)
		formatted++
	})
	require.Positive(t, formatted)
}

// said returns what a Spec says, without positions.
func said(t require.TestingT, s *spec.Spec) string {
	text, err := json.Marshal([]any{
		s.Version, s.Package, s.Schema, s.Consumer, s.Defaults, s.Types, s.Namespaces, s.Listeners, s.Operations,
	})
	require.NoError(t, err)
	return regexp.MustCompile(`"Pos":\{[^}]*\}`).ReplaceAllString(string(text), "")
}

func indentOf(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// mutated returns lines with other indentation, comments, spaces and blank lines, and with neighbours swapped.
func mutated(t *rapid.T, lines []string) string {
	lines = append([]string(nil), lines...)
	wider := rapid.IntRange(1, 3).Draw(t, "wider")
	for i, line := range lines {
		lines[i] = strings.Repeat(" ", indentOf(line)*(wider-1)) + line
	}
	for range rapid.IntRange(0, 12).Draw(t, "changes") {
		i := rapid.IntRange(0, len(lines)-1).Draw(t, "line")
		insert := func(text string) { lines = append(lines[:i], append([]string{text}, lines[i:]...)...) }
		switch rapid.IntRange(0, 5).Draw(t, "change") {
		case 0:
			insert(strings.Repeat(" ", rapid.IntRange(0, 14).Draw(t, "indent")) + "# COMMENT: {")
		case 1:
			insert(strings.Repeat(" ", rapid.IntRange(0, 3).Draw(t, "blanks")))
		case 2:
			lines[i] += "  # COMMENT, 'a"
		case 3:
			lines[i] = strings.Replace(lines[i], ": ", ":   ", 1) + "  "
		case 4: // a key and what is below it change places with the next one
			end := func(from int) int {
				to := from + 1
				for to < len(lines) && (strings.TrimSpace(lines[to]) == "" || indentOf(lines[to]) > indentOf(lines[from])) {
					to++
				}
				return to
			}
			j := end(i)
			if j < len(lines) && indentOf(lines[j]) == indentOf(lines[i]) {
				k := end(j)
				lines = append(append(append(append([]string(nil), lines[:i]...), lines[j:k]...), lines[i:j]...), lines[k:]...)
			}
		case 5:
			lines[i] = strings.Replace(strings.Replace(lines[i], ", ", "  ,", 1), "{", "{ ", 1)
		}
	}
	return strings.Join(lines, "\n") + rapid.SampledFrom([]string{"", "\n", "\n\n  \n"}).Draw(t, "end")
}

// TestFormatRefuses: what cannot be arranged is a finding, and nothing else.
func TestFormatRefuses(t *testing.T) {
	t.Parallel()
	const rest = "version: \"1\"\npackage: events\n"
	topics := func(value string) string {
		return rest + "namespaces:\n  a:\n    topics:\n      b: {delivery: log, payload: {}}\nlisteners:\n  c:\n    topics: " + value + "\n"
	}
	for text, want := range map[string]string{
		"package: [":     "outbox.yaml:1:10: not valid YAML: the [ is not closed (close it with ]) [yaml-syntax]",
		"version: \"2\"": `outbox.yaml:1:10: version: unknown version "2" (this outboxgen reads "1") [unknown-version]`,
		rest + "namespaces: &a {x: {topics: {y: {payload: {}}}}}":                              "outbox.yaml:3:13: the anchor &a is not allowed: repeat the value, or move it into types or defaults [yaml-anchor]",
		"? version\n: \"1\"\npackage: events\nnamespaces: {a: {topics: {b: {payload: {}}}}}\n": "outbox.yaml:1:3: fmt cannot arrange this key: write it on one line, followed by a colon [yaml-syntax]",
		"# a\u2028" + topics("[a/b]"):                                                          `outbox.yaml:1:4: fmt cannot arrange a line that ends with "\u2028": end it with LF or CRLF [yaml-syntax]`,
	} {
		_, err := spec.Format([]byte(text), "outbox.yaml")
		var l diag.List
		require.ErrorAs(t, err, &l, text)
		require.EqualError(t, err, want, text)
	}
}

// TestExamplesAreFormatted: what people copy is in the canonical layout.
func TestExamplesAreFormatted(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../examples/*/*/outbox.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		got, err := spec.Format(source, path)
		require.NoError(t, err)
		require.Equal(t, string(got), string(source), "run outboxgen fmt %s", path)
	}
}
