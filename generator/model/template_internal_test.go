package model

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParseTemplate(t *testing.T) {
	t.Parallel()
	parsed, err := parseTemplate("{tenant_id}/turn-{turn_id}.v1/all of it")
	require.NoError(t, err)
	require.Equal(t, pattern{
		{literals: []string{"", ""}, fields: []string{"tenant_id"}},
		{literals: []string{"turn-", ".v1"}, fields: []string{"turn_id"}},
		{literals: []string{"all of it"}},
	}, parsed)
	require.NoError(t, parsed.injective())
	require.True(t, parsed.startsWith("tenant_id"))
	require.False(t, parsed.startsWith("turn_id"))
}

func TestParseTemplateRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":             "is empty",
		"{a":           `has a "{" without a "}" after it`,
		"{a{b}}":       `has a "{" without a "}" after it`,
		"a}":           `has a "}" without a "{" before it`,
		"{a}}":         `has a "}" without a "{" before it`,
		"{}":           `has a "{}" that names no field`,
		"/{a}":         "has an empty segment between slashes",
		"{a}//{b}":     "has an empty segment between slashes",
		"{a}/":         "has an empty segment between slashes",
		"{a/b}":        `has a "{" without a "}" after it`,
		"é{a}":         `holds the character 'é', which is not printable ASCII`,
		"{a}\n":        `holds the character '\n', which is not printable ASCII`,
		"{a}\x7f":      `holds the character '\x7f', which is not printable ASCII`,
		"\xff/{a}":     `holds the character '�', which is not printable ASCII`,
		long("x", 513): "is longer than 512 bytes",
	} {
		_, err := parseTemplate(text)
		require.EqualError(t, err, want, "%q", text)
	}
	_, err := parseTemplate(long("x", 512))
	require.NoError(t, err)
}

func long(unit string, n int) string { return strings.Repeat(unit, n) }

func TestInjective(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{a}{b}":       `must have a "/" between "{a}" and "{b}"`,
		"{a}-{b}":      `must have a "/" between "{a}" and "{b}"`,
		"{a}/x{b}{a}y": `must have a "/" between "{b}" and "{a}"`,
		"a/b":          "has no {field}",
	} {
		parsed, err := parseTemplate(text)
		require.NoError(t, err)
		require.ErrorContains(t, parsed.injective(), want, text)
	}
}

// render is an oracle: what the runtime makes of a pattern whose fields are strings.
func (p pattern) render(values map[string]string) string {
	encode := strings.NewReplacer("%", "%25", "/", "%2F")
	segments := make([]string, len(p))
	for i, segment := range p {
		segments[i] = segment.literals[0]
		for j, field := range segment.fields {
			segments[i] += encode.Replace(values[field]) + segment.literals[j+1]
		}
	}
	return strings.Join(segments, "/")
}

// checkInjective draws tuples from a small alphabet, in which an ambiguous template soon collides.
func checkInjective(t require.TestingT, p pattern, values []string) {
	fields := make(map[string]bool)
	var names []string
	for _, segment := range p {
		for _, field := range segment.fields {
			if !fields[field] {
				fields[field] = true
				names = append(names, field)
			}
		}
	}
	seen := make(map[string]string)
	for start := range values {
		for step := range 3 {
			tuple := make(map[string]string)
			var id strings.Builder
			for i, name := range names {
				tuple[name] = values[(start+i*step)%len(values)]
				id.WriteString(strconv.Quote(tuple[name]))
			}
			key := p.render(tuple)
			if other, twice := seen[key]; twice {
				require.Equal(t, other, id.String(), "%q is the key of two tuples", key)
			}
			seen[key] = id.String()
		}
	}
}

// tricky are values that render to the same key when a separator or an escape is forgotten.
var tricky = []string{"a", "b", "ab", "a/b", "b/a", "a%2Fb", "/", "//", "%", "%2F", "%25", "a/", "/a", "-", "a-b", "{a}", "}", "é", "\x00", "%252F"}

func TestTemplatesAreInjective(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var segments []string
		for range rapid.IntRange(1, 4).Draw(t, "segments") {
			literal := rapid.StringMatching(`[a-c%.-]{0,2}`)
			segment := literal.Draw(t, "prefix")
			for range rapid.IntRange(0, 2).Draw(t, "placeholders") {
				segment += "{" + rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "field") + "}" + literal.Draw(t, "suffix")
			}
			segments = append(segments, segment)
		}
		parsed, err := parseTemplate(strings.Join(segments, "/"))
		if err != nil || parsed.injective() != nil {
			return
		}
		checkInjective(t, parsed, rapid.Permutation(tricky).Draw(t, "values"))
	})
}

func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{"{tenant_id}/{turn_id}", "{a}-{b}", "x{a}y/{b}", "{a", "a}", "{}", "//", "a/b", "{a}/{a}", "%2F{a}/é", "{a}%/%2F{b}"} {
		f.Add(seed, "a", "a/b")
	}
	f.Fuzz(func(t *testing.T, text, first, second string) {
		parsed, err := parseTemplate(text)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		back := make([]string, len(parsed))
		for i, segment := range parsed {
			require.Len(t, segment.literals, len(segment.fields)+1)
			back[i] = segment.literals[0]
			for j, field := range segment.fields {
				back[i] += "{" + field + "}" + segment.literals[j+1]
			}
		}
		require.Equal(t, text, strings.Join(back, "/"), "nothing is lost")
		if parsed.injective() == nil {
			checkInjective(t, parsed, append([]string{first, second, first + second}, tricky...))
		}
	})
}
