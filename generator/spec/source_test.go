package spec_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

func decode(source string) (*spec.Spec, diag.List) { return spec.Decode([]byte(source), "outbox.yaml") }

func TestDecodeRefusesLargeFiles(t *testing.T) {
	t.Parallel()
	head := "version: \"1\"\npackage: events\nnamespaces: {}\n#"
	_, findings := decode(head + strings.Repeat("x", 1<<20-len(head)))
	require.EqualError(t, findings, "outbox.yaml:3:13: namespaces: at least one entry is required at the top level [empty-section]")
	s, findings := decode(head + strings.Repeat("x", 1<<20-len(head)+1))
	require.Nil(t, s)
	require.EqualError(t, findings, "outbox.yaml:1:1: the file has 1048577 bytes: the limit is 1048576 [yaml-too-large]")
}

func TestDecodePlacesBadCharacters(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"a: b\nc: \xff":        "2:4: the byte 0xff is not UTF-8",
		"é: \x00":              "1:4: there is a NUL byte here: remove it",
		"a\r\nb\rc\x01":        "3:2: the character U+0001 is not allowed in YAML",
		"a\u0085b\u2028c\x7f":  "3:2: the character U+007F is not allowed in YAML",
		"a: \uFEFF":            "1:4: there is a byte order mark here, which most editors do not show: remove it",
		"\xff\xfea\x00:\x00":   "1:1: the byte 0xff is not UTF-8",
		"a: \u009b31m":         "1:4: the character U+009B is not allowed in YAML",
		"a: \xed\xa0\x80":      "1:4: the byte 0xed is not UTF-8",
		"a: b\n\nc: d\n\x1b[m": "4:1: the character U+001B is not allowed in YAML",
	} {
		s, findings := decode(source)
		require.Nil(t, s)
		require.EqualError(t, findings, "outbox.yaml:"+want+" [yaml-encoding]", "%q", source)
	}
}

// A finding about something missing at the end of a file has a place in the file.
func TestDecodePlacesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"---":             "1:1: the file must be a mapping, not an empty value [wrong-type]",
		"# c\n---":        "2:1: the file must be a mapping, not an empty value [wrong-type]",
		"---\n":           "2:1: the file must be a mapping, not an empty value [wrong-type]",
		"---\n# c\n...\n": "3:1: the file must be a mapping, not an empty value [wrong-type]",
	} {
		_, findings := decode(source)
		require.EqualError(t, findings, "outbox.yaml:"+want, "%q", source)
	}
}

func TestDecodePlacesSyntaxErrors(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"a: [b\nc: d\n":                  "1:4",
		"a:\n  b: c\n d: e\n":            "3:2",
		"a: b\n  c: d\n":                 "2:3",
		"a: 'b\nc: d\n":                  "1:4",
		"a: b\n\tc: d\n":                 "2:1",
		"- a\nb: c\n":                    "2:1",
		"a: {b: c\n":                     "1:4",
		"a: b\n---\nc: [\n":              "3:4",
		"a: b\nc: @d\n":                  "2:4",
		"%YAML 3.0\n---\na: b\n":         "3:1",
		"a: b\n\n\n# c\n\n  ]\n":         "6:3",
		"a: |2x\n b\n":                   "1:1",
		"? a\n? [b\n":                    "2:1",
		"a: b\nc: d: e\n":                "2:5",
		"x: 1\ny: {a: b}c\nz: 1\n":       "2:10",
		"x: 1\ny: [a, b\nz: 1\nw: 2\n":   "2:4",
		"version: \"1\"\nb:\n  c: \"d\n": "3:6",
	} {
		s, findings := decode(source)
		require.Nil(t, s, "%q", source)
		require.Len(t, findings, 1, "%q", source)
		require.Equal(t, diag.YAMLSyntax, findings[0].Rule)
		require.Equal(t, "outbox.yaml:"+want, findings[0].Pos.String(), "%q: %s", source, findings[0].Message)
	}
}

// findSlip must find nothing in a source that the library reads: it would hide the real mistake.
func TestFindSlipKnowsWhatIsRight(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../testdata/*/outbox.yaml")
	require.NoError(t, err)
	for _, pattern := range []string{"../../examples/*/events/outbox.yaml", "testdata/*.yaml", "../model/testdata/*.yaml"} {
		more, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, more...)
	}
	require.Greater(t, len(files), 80)
	for _, name := range files {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		if _, err := spec.JSONValue(source); err == nil {
			require.Empty(t, spec.FindSlip(source), name)
		}
	}
	for _, source := range []string{
		"%YAML 1.1\n---\na: b\n...\n# c\n---\nd: e\n",
		"a:\n- b\n- c: d\n  e: f\n- - g\n  - h\ni: j\n",
		"a: |\n  b: c: d\n \n  - {\nb: >-\n   x\n\nc: d\n",
		"a: b\n  c - d\n  - e {\nf: 'g\n  h''i'\nj: \"k\n  l\\\n  \\\"m\" # n\n",
		"a:\n  some text\n  over lines\nb: [\n  c,\n  d: {e: f}, # [\n  \"g\": 'h', i\n]\n",
		"{\"a\":\"b\",\"c\":[1,{\"d\":{}}],\n\"e\": null}\n",
		"'a': b\n\"c d\" : e\nf:\t g\nhttp://x: y\nk: http://z#w\nl: a-b, c\n",
		"a: &x b\nc: *x\nd: !!str e\nf: &y\n  g: h\n",
		"a: [b c, {d e: f g}, h\n  i]\n",
	} {
		_, err := spec.JSONValue([]byte(source))
		require.NoError(t, err, "%q", source)
		require.Empty(t, spec.FindSlip([]byte(source)), "%q", source)
	}
}

func TestDecodeTakesAnEmptyFileAsAnEmptyMapping(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"", "\n", "# a comment\n", "{}"} {
		_, findings := decode(source)
		require.Len(t, findings, 3, "%q", source)
		require.Equal(t, diag.MissingKey, findings[0].Rule)
	}
	_, findings := decode("---\n")
	require.EqualError(t, findings, "outbox.yaml:2:1: the file must be a mapping, not an empty value [wrong-type]")
}

// A file that is built to be slow is still checked quickly: the parser, the guard and the suggestions are all linear or
// bounded. Each of these takes a fraction of a second; a quadratic algorithm would take minutes.
func TestDecodeIsBoundedOnHostileFiles(t *testing.T) {
	t.Parallel()
	fill := func(unit string) string { return strings.Repeat(unit, (1<<18)/len(unit)) }
	many := func(format func(i int) string) string {
		var out strings.Builder
		for i := 0; out.Len() < 1<<18; i++ {
			out.WriteString(format(i))
		}
		return out.String()
	}
	number := func(i int) string { return fmt.Sprintf("n%06d", i) }
	for name, source := range map[string]string{
		"lists":      fill("["),
		"mappings":   fill("{a: "),
		"dashes":     fill("- "),
		"questions":  fill("? "),
		"comments":   fill("#\n"),
		"newlines":   fill("\n"),
		"anchors":    "[" + fill("&a a,") + "]",
		"aliases":    "a: &a b\nc: [" + fill("*a,") + "]",
		"tags":       "[" + fill("!a a,") + "]",
		"documents":  fill("---\n"),
		"quotes":     fill("'"),
		"keys":       many(func(i int) string { return number(i) + ": x\n" }),
		"same keys":  fill("a: b\n"),
		"types":      "version: \"1\"\ntypes:\n" + many(func(i int) string { return "  " + number(i) + ": {fields: {a: x" + number(i) + "}}\n" }),
		"long plain": "a: " + fill("x "),
		"fold":       "a: >\n" + fill(" x\n"),
		"dedent":     many(func(i int) string { return strings.Repeat(" ", i%60) + "a:\n" }),
	} {
		start := time.Now()
		_, findings := decode(source)
		require.NotEmpty(t, findings, name)
		require.Less(t, time.Since(start), time.Minute, name)
	}
}
