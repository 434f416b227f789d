package generator_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/sample"
	"github.com/outboxgen/outboxgen/generator/spec"
	"github.com/outboxgen/outboxgen/internal/tool/describe"
	"github.com/outboxgen/outboxgen/internal/tool/payloadcheck"
	"github.com/outboxgen/outboxgen/internal/tool/yamlmask"
)

// attribute is a key of a field, or of a shared type that has rules for its values. It is tried on a field f, or on its
// type.
type attribute struct {
	name      string
	base, set string // f, or the shared type t, without it and with it
	breaks    string // a value that is right without it, and wrong with it
	places    string // what reacts: all of them, unless why says why not
	why       string
}

// everywhere are the places that an attribute which makes values invalid must reach.
const everywhere = "code evolve lock sample check schema"

var fieldAttributes = []attribute{
	{name: "type", base: "string", set: "int64", breaks: `"x"`, places: everywhere},
	{name: "optional", base: "{type: timestamp}", set: "{type: timestamp, optional: true}", places: everywhere},
	{name: "min", base: "int32", set: "{type: int32, min: 43}", breaks: "42", places: everywhere},
	{name: "max", base: "int32", set: "{type: int32, max: 41}", breaks: "42", places: everywhere},
	{name: "min_len", base: "string", set: "{type: string, min_len: 30}", breaks: `"short"`, places: everywhere},
	{name: "max_len", base: "string", set: "{type: string, max_len: 3}", breaks: `"long"`, places: everywhere},
	{name: "pattern", base: "string", set: `{type: string, pattern: "^[a-c]{2}$"}`, breaks: `"xy"`, places: everywhere},
	{
		name: "sensitive", base: "string", set: "{type: string, sensitive: true}", places: "code lock mask",
		why: "it changes no value, so stored events and messages fit",
	},
	{
		name: "sensitive", base: "string", set: "{type: string, sensitive: sealed}", breaks: `"open"`,
		places: "code evolve lock check schema mask", why: "examples are what handlers get, with nothing sealed",
	},
	{
		name: "go", base: "string", set: "{type: string, go: Fee}", places: "code evolve lock",
		why: "only Go sees it, and no rule depends on it",
	},
	{
		name: "doc", base: "string", set: "{type: string, doc: is a text}", places: "code schema",
		why: "it is for people, and nothing depends on it",
	},
}

var typeAttributes = []attribute{
	{name: "enum", base: "{enum: [x, a]}", set: "{enum: [a]}", breaks: `"x"`, places: everywhere},
	{name: "min", base: "{scalar: int64}", set: "{scalar: int64, min: 9007199254740994}", breaks: "42", places: everywhere},
	{name: "max", base: "{scalar: int64}", set: "{scalar: int64, max: 41}", breaks: "42", places: everywhere},
	{name: "min_len", base: "{scalar: string}", set: "{scalar: string, min_len: 30}", breaks: `"short"`, places: everywhere},
	{name: "max_len", base: "{scalar: string}", set: "{scalar: string, max_len: 3}", breaks: `"long"`, places: everywhere},
	{name: "pattern", base: "{scalar: string}", set: `{scalar: string, pattern: "^[a-c]{2}$"}`, breaks: `"xy"`, places: everywhere},
}

// TestEveryAttribute sets each attribute of a field and looks who reacts: the generated code, the comparison with the
// lock, what the lock stores, examples, the check of payloads by the command line, the JSON Schema for others, and
// masking. An attribute that is new needs a line above and one in docs/model/yaml.md; a line above demands all places, or
// says why not. It does not see what else may be concerned: synonyms, the Go types of older versions, and which function
// of payload a check calls.
func TestEveryAttribute(t *testing.T) {
	t.Parallel()
	var schema struct {
		Defs map[string]json.RawMessage `json:"$defs"`
	}
	text, err := spec.JSONSchema()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &schema))
	require.ElementsMatch(t, keysOf(t, schema.Defs["field"]), slices.Compact(namesOf(fieldAttributes)),
		"fieldAttributes needs a line for each attribute")
	rest := slices.DeleteFunc(keysOf(t, schema.Defs["type"]), func(key string) bool {
		return slices.Contains([]string{"doc", "go", "fields", "scalar"}, key) // they are no rule for a value by themselves
	})
	require.ElementsMatch(t, rest, namesOf(typeAttributes), "typeAttributes needs a line for each attribute")
	doc, err := os.ReadFile("../docs/model/yaml.md")
	require.NoError(t, err)
	for _, name := range namesOf(fieldAttributes) {
		require.True(t, name == "type" || strings.Contains(string(doc), "`"+name+"`"), "docs/model/yaml.md has no %s", name)
	}
	for _, a := range fieldAttributes {
		t.Run(a.name+" "+a.set, func(t *testing.T) {
			t.Parallel()
			a.check(t, oneField("string", a.base), oneField("string", a.set))
		})
	}
	for _, a := range typeAttributes {
		t.Run("type "+a.name, func(t *testing.T) {
			t.Parallel()
			a.check(t, oneField(a.base, "t"), oneField(a.set, "t"))
		})
	}
}

// keysOf returns the keys of a mapping of the YAML by its JSON Schema, which may have a shorter form beside it.
func keysOf(t *testing.T, definition json.RawMessage) []string {
	t.Helper()
	var all struct {
		Properties   map[string]any
		AnyOf, OneOf []struct{ Properties map[string]any }
	}
	require.NoError(t, json.Unmarshal(definition, &all))
	for _, form := range slices.Concat(all.AnyOf, all.OneOf) {
		if len(form.Properties) > len(all.Properties) {
			all.Properties = form.Properties
		}
	}
	return slices.Collect(maps.Keys(all.Properties))
}

func namesOf(list []attribute) (names []string) {
	for _, a := range list {
		names = append(names, a.name)
	}
	return names
}

// oneField is a YAML with a shared type t and a field f.
func oneField(t, f string) string {
	if t == "string" {
		t = "{scalar: string}"
	}
	return `version: "1"
package: events
types:
  t: ` + t + `
namespaces:
  shop:
    topics:
      sold:
        publish: {kafka: {topic: sold}}
        payload:
          u: t
          f: ` + f + "\n"
}

func (a attribute) check(t *testing.T, base, set string) {
	t.Helper()
	if a.places != everywhere {
		require.NotEmpty(t, a.why, "say why not everywhere")
	}
	locked := freeze(t, base, nil).Lock
	_, findings := generator.Load([]byte(set), generator.Options{Source: "outbox.yaml", Lock: locked})
	before, after := loaded(t, base), loaded(t, set)
	reacts := map[string]bool{
		"code":   generated(t, base) != generated(t, set),
		"evolve": len(findings) > 0,
		"lock":   string(locked) != string(freeze(t, set, nil).Lock),
		"sample": examples(before) != examples(after),
		"check":  a.breaks == "" && payloadcheck.Check(before, without) != nil && payloadcheck.Check(after, without) == nil,
		"schema": described(t, before) != described(t, after),
		"mask":   masked(t, base) != masked(t, set),
	}
	for _, example := range sample.Payloads(after.Fields) {
		example = sample.Stored(after.Fields, after.Sealed, example)
		require.Empty(t, payloadcheck.Check(after, example), "an example is wrong: %s", example)
	}
	if a.breaks != "" {
		u := `"x"`
		if before.Fields[1].Type.Type != nil { // both are of the shared type
			u = a.breaks
		}
		value := json.RawMessage(`{"u":` + u + `,"f":` + a.breaks + `}`)
		require.Empty(t, payloadcheck.Check(before, value))
		reacts["check"] = len(payloadcheck.Check(after, value)) > 0
	}
	for place, is := range reacts {
		require.Equal(t, slices.Contains(strings.Fields(a.places), place), is, "%s reacts to the attribute: %s", place, a.why)
	}
}

// without is a payload without the field f.
var without = json.RawMessage(`{"u":"x"}`)

func loaded(t *testing.T, source string) *model.Topic {
	t.Helper()
	m, findings := generator.Load([]byte(source), generator.Options{})
	require.Empty(t, findings)
	return m.Namespaces[0].Topics[0]
}

func generated(t *testing.T, source string) (all string) {
	t.Helper()
	files, err := generator.Generate([]byte(source), generator.Options{})
	require.NoError(t, err)
	for _, f := range files {
		all += string(f.Content)
	}
	return all
}

func examples(topic *model.Topic) (all string) {
	for _, e := range sample.Payloads(topic.Fields) {
		all += string(e) + "\n"
	}
	return all
}

func described(t *testing.T, topic *model.Topic) string {
	t.Helper()
	text, err := describe.JSONSchema(describe.KindOf(topic), "")
	require.NoError(t, err)
	return string(text)
}

func masked(t *testing.T, source string) string {
	t.Helper()
	m, findings := generator.Load([]byte(source), generator.Options{})
	require.Empty(t, findings)
	payload, known := yamlmask.New(m).Payload("shop/sold", json.RawMessage(`{"u":"x","f":"x"}`))
	require.True(t, known)
	return string(payload)
}
