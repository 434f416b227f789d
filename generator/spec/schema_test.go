package spec_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// schema is a JSON Schema with the few keywords that ours uses. It panics on any other keyword, so that the tests below
// cannot miss one.
type schema struct {
	defs     map[string]any
	root     map[string]any
	patterns map[string]*regexp.Regexp
}

func loadSchema(t *testing.T) *schema {
	t.Helper()
	text, err := spec.JSONSchema()
	require.NoError(t, err)
	var root map[string]any
	require.NoError(t, json.Unmarshal(text, &root))
	require.Equal(t, "https://json-schema.org/draft/2020-12/schema", root["$schema"])
	return &schema{root["$defs"].(map[string]any), root, make(map[string]*regexp.Regexp)}
}

func (s *schema) accepts(value any) bool { return s.check(s.root, value) }

func (s *schema) check(rules map[string]any, value any) bool {
	for keyword, want := range rules {
		if !s.keyword(rules, keyword, want, value) {
			return false
		}
	}
	return true
}

func (s *schema) keyword(rules map[string]any, keyword string, want, value any) bool {
	object, isObject := value.(map[string]any)
	list, isList := value.([]any)
	text, isText := value.(string)
	number, isNumber := value.(float64)
	switch keyword {
	case "$schema", "$id", "$defs", "title", "description":
		return true
	case "$ref":
		return s.check(s.defs[strings.TrimPrefix(want.(string), "#/$defs/")].(map[string]any), value)
	case "type":
		if names, several := want.([]any); several {
			return slices.ContainsFunc(names, func(name any) bool { return isType(name.(string), value) })
		}
		return isType(want.(string), value)
	case "enum":
		return slices.Contains(want.([]any), value)
	case "pattern":
		pattern, compiled := s.patterns[want.(string)]
		if !compiled {
			pattern = regexp.MustCompile(want.(string))
			s.patterns[want.(string)] = pattern
		}
		return !isText || pattern.MatchString(text)
	case "minimum":
		return !isNumber || number >= want.(float64)
	case "maximum":
		return !isNumber || number <= want.(float64)
	case "minItems":
		return !isList || len(list) >= int(want.(float64))
	case "minProperties":
		return !isObject || len(object) >= int(want.(float64))
	case "items":
		return !slices.ContainsFunc(list, func(item any) bool { return !s.check(want.(map[string]any), item) })
	case "required":
		return !isObject || !slices.ContainsFunc(want.([]any), func(key any) bool { _, ok := object[key.(string)]; return !ok })
	case "propertyNames":
		for name := range object {
			if !s.check(want.(map[string]any), name) {
				return false
			}
		}
		return true
	case "properties":
		for name, item := range object {
			if rules, known := want.(map[string]any)[name]; known && !s.check(rules.(map[string]any), item) {
				return false
			}
		}
		return true
	case "additionalProperties":
		known, _ := rules["properties"].(map[string]any)
		for name, item := range object {
			if _, ok := known[name]; ok {
				continue
			}
			if inner, ok := want.(map[string]any); want == false || ok && !s.check(inner, item) {
				return false
			}
		}
		return true
	case "anyOf":
		return slices.ContainsFunc(want.([]any), func(choice any) bool { return s.check(choice.(map[string]any), value) })
	case "oneOf":
		fits := 0
		for _, choice := range want.([]any) {
			if s.check(choice.(map[string]any), value) {
				fits++
			}
		}
		return fits == 1
	}
	panic("a keyword that this test does not know: " + keyword)
}

func isType(name string, value any) bool {
	switch v := value.(type) {
	case map[string]any:
		return name == "object"
	case []any:
		return name == "array"
	case string:
		return name == "string"
	case bool:
		return name == "boolean"
	case float64:
		return name == "number" || name == "integer" && v == math.Trunc(v)
	}
	return false
}

// fullFile has every key there is, so that the mutations below reach each of them.
func fullFile(t *testing.T) (source []byte, value any) {
	t.Helper()
	source, err := os.ReadFile("testdata/full.yaml")
	require.NoError(t, err)
	value, err = spec.JSONValue(source)
	require.NoError(t, err)
	return source, value
}

func TestFullFileHasEveryKeyOfTheSchema(t *testing.T) {
	t.Parallel()
	source, _ := fullFile(t)
	for _, rules := range append(slices.Collect(maps.Values(loadSchema(t).defs)), loadSchema(t).root) {
		for name := range rules.(map[string]any)["properties"].(map[string]any) {
			require.Regexp(t, `(?m)[\s{]`+name+`:`, string(source), "testdata/full.yaml has no key %s", name)
		}
	}
}

func TestSchemaAndDecoderAcceptTheFullFile(t *testing.T) {
	t.Parallel()
	source, value := fullFile(t)
	_, findings := spec.Decode(source, "full.yaml")
	require.Empty(t, findings)
	require.True(t, loadSchema(t).accepts(value))
}

// Every key is renamed, left out, and given values of every kind. The schema must refuse what the decoder refuses, and
// the decoder or the model must refuse what the schema refuses.
func TestSchemaAndDecoderKnowTheSameKeys(t *testing.T) {
	t.Parallel()
	schema := loadSchema(t)
	source, value := fullFile(t)
	require.Zero(t, load(source))
	mutants := 0
	mutate(value, "", func(what string) {
		mutants++
		source, err := json.Marshal(value)
		require.NoError(t, err)
		if schema.accepts(value) {
			_, decoded := spec.Decode(source, "outbox.yaml")
			require.Empty(t, decoded, "%s: the schema accepts what the decoder refuses", what)
		} else {
			require.Positive(t, load(source), "%s: the schema refuses what is accepted", what)
		}
	})
	require.Greater(t, mutants, 500)
}

// load returns how many findings there are about source.
func load(source []byte) int {
	_, findings := model.Load(source, "outbox.yaml")
	return len(findings)
}

// mutate changes value in one place after the other and calls check each time.
func mutate(value any, path string, check func(what string)) {
	replacements := []any{map[string]any{}, []any{}, 5.0, "some text", true, nil, "", []any{5.0}, 1.5}
	switch v := value.(type) {
	case map[string]any:
		v["unheard_of"] = 5.0
		check(path + ": a new key")
		delete(v, "unheard_of")
		for _, name := range slices.Sorted(maps.Keys(v)) {
			old, where := v[name], path+"/"+name
			delete(v, name)
			check(where + " left out")
			v[strings.ToUpper(name)] = old
			check(where + " in upper case")
			delete(v, strings.ToUpper(name))
			for _, replacement := range replacements {
				v[name] = replacement
				check(fmt.Sprintf("%s = %#v", where, replacement))
			}
			v[name] = old
			mutate(old, where, check)
		}
	case []any:
		for i, old := range v {
			for _, replacement := range replacements {
				v[i] = replacement
				check(fmt.Sprintf("%s[%d] = %#v", path, i, replacement))
			}
			v[i] = old
			mutate(old, fmt.Sprintf("%s[%d]", path, i), check)
		}
	}
}

func TestSchemaIsDeterministicAndDescribed(t *testing.T) {
	t.Parallel()
	first, err := spec.JSONSchema()
	require.NoError(t, err)
	second, err := spec.JSONSchema()
	require.NoError(t, err)
	require.Equal(t, string(first), string(second))
	require.True(t, utf8.Valid(first))
	described(t, loadSchema(t).root, "root")
	for name, rules := range loadSchema(t).defs {
		described(t, rules.(map[string]any), name)
	}
}

func described(t *testing.T, rules map[string]any, where string) {
	t.Helper()
	require.NotEmpty(t, rules["description"], where)
	for name, property := range rules["properties"].(map[string]any) {
		require.Regexp(t, `\S\.$|\S:.*\.$`, property.(map[string]any)["description"], "%s.%s", where, name)
	}
}
