package generator_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/evolve"
	"github.com/outboxgen/outboxgen/internal/testing/randomyaml"
)

// evolving is a file with one of everything that can change.
const evolving = `version: "1"
package: events
types:
  usage:
    fields:
      tokens: {type: int64, min: 0}
      note: string?
  outcome: {enum: [completed, failed]}
  turn_id: {scalar: uuid}
  label: {scalar: string, min_len: 1, max_len: 9}
namespaces:
  chat:
    topics:
      finalized:
        version: 1
        delivery: queue
        tenant: tenant_id
        dedupe_key: "{tenant_id}/{turn_id}"
        partition_key: "{chat_id}"
        entity: {type: turn, id: "{turn_id}", version: number}
        payload:
          tenant_id: uuid
          owner_id: uuid
          turn_id: turn_id
          chat_id: uuid
          number: int64
          outcome: outcome
          usage: usage
          label: label
          labels: "[]label"
          text: {type: string, min_len: 1, max_len: 100, pattern: "^[a-z]"}
          score: {type: float64, min: 0, max: 1}
          wait: {type: duration, min: 1s}
          tags: {type: "[]string", max_len: 5}
          extra: {type: "map[string]int32?", min_len: 0}
      published:
        publish: {kafka: {topic: chat.published}, key: "{id}"}
        payload: {id: uuid, usage: "usage?"}
      logged:
        delivery: log
        partition_key: "{id}"
        listeners: none
        payload: {id: uuid}
`

// freeze returns the lock of source.
func freeze(t require.TestingT, source string, locked []byte, retire ...string) *generator.Frozen {
	frozen, err := generator.Freeze([]byte(source), nil, retire, generator.Options{Source: "outbox.yaml", Lock: locked})
	require.NoError(t, err)
	return frozen
}

func replace(t *testing.T, source, old, now string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(source, old), "%q must be there once", old)
	return strings.Replace(source, old, now, 1)
}

// TestEveryKindOfChange changes one thing of a frozen file. Each change has its rule and its place, with a lock and without
// one; it also stops generate; and with a raised version an error is gone.
func TestEveryKindOfChange(t *testing.T) {
	t.Parallel()
	locked := freeze(t, evolving, nil).Lock
	for _, c := range []struct{ name, old, now, want string }{
		{"nothing", "package: events", "package: events # same", ""},
		{"doc", "tenant_id: uuid\n", "tenant_id: {type: uuid, doc: who pays}\n", ""},
		{"optional field", "score:", "extra_note: string?\n          score:", ""},
		{"optional field of a shared type", "note: string?", "note: string?\n      more: int32?", ""},
		{"order of fields", "          number: int64\n          outcome: outcome\n", "          outcome: outcome\n          number: int64\n", ""},
		{"retry", "delivery: queue", "delivery: queue\n        retry: {max_attempts: 20}", ""},
		{"limits and a batch", "delivery: queue", "delivery: queue\n        limits: [{per: tenant, concurrency: 5}]\n        batch: {size: 5}", ""},
		{"sensitive", "number: int64\n          outcome: outcome\n          usage: usage\n", "number: int64\n          outcome: outcome\n          usage: {type: usage, sensitive: true}\n", ""},
		{"new topic", "      logged:", "      other: {payload: {id: uuid}}\n      logged:", ""},

		{"required field", "score:", "extra_note: string\n          score:", "32:11 change-field-added"},
		{"required field of a shared type", "note: string?", "note: string?\n      more: int32", "8:7 change-field-added"},
		{"removed field", "          score: {type: float64, min: 0, max: 1}\n", "", "22:11 change-field-removed"},
		{"renamed field", "          score: {", "          points: {", "22:11 change-field-removed, 32:11 change-field-added"},
		{"removed field of a shared type", "      note: string?\n", "", "6:7 change-field-removed"},
		{"optional to required", "note: string?", "note: string", "7:13 change-field-optional"},
		{"required to optional", "owner_id: uuid", "owner_id: uuid?", "23:21 change-field-optional"},
		{"required to optional, as a key", "score: {type: float64,", "score: {type: float64, optional: true,", "32:44 change-field-optional"},
		{"type", "owner_id: uuid", "owner_id: string", "23:21 change-field-type"},
		{"type of elements", `"map[string]int32?"`, `"map[string]int64?"`, "35:25 change-field-type"},
		{"type of a shared scalar", "turn_id: {scalar: uuid}", "turn_id: {scalar: string}", "24:20 change-field-type"},
		{"enum value removed", "[completed, failed]", "[completed]", "8:19 change-enum-value"},
		{"enum value renamed", "[completed, failed]", "[completed, aborted]", "8:19 change-enum-value"},
		{"enum value added", "[completed, failed]", "[completed, failed, aborted]", ""},
		{"enum values in another order", "[completed, failed]", "[failed, completed]", ""},

		{"min raised", "score: {type: float64, min: 0", "score: {type: float64, min: 0.5", "32:39 change-bounds"},
		{"min lowered", "score: {type: float64, min: 0", "score: {type: float64, min: -1", ""},
		{"min removed", "score: {type: float64, min: 0,", "score: {type: float64,", ""},
		{"min added", "number: int64", "number: {type: int64, min: 1}", "26:38 change-bounds"},
		{"min added that says nothing", "number: int64", "number: {type: int64, min: -9223372036854775808}", ""},
		{"max lowered", "min: 0, max: 1}", "min: 0, max: 0.5}", "32:47 change-bounds"},
		{"max raised", "min: 0, max: 1}", "min: 0, max: 2}", ""},
		{"min of a duration", "min: 1s", "min: 2s", "33:39 change-bounds"},
		{"min of a shared field", "tokens: {type: int64, min: 0}", "tokens: {type: int64, min: 1}", "6:34 change-bounds"},
		{"max_len lowered", "max_len: 100", "max_len: 99", "31:53 change-bounds"},
		{"max_len raised", "max_len: 100", "max_len: 101", ""},
		{"max_len of a list", `"[]string", max_len: 5`, `"[]string", max_len: 4`, "34:45 change-bounds"},
		{"max_len of a scalar", "max_len: 9", "max_len: 8", "10:48 change-bounds"},
		{"min_len raised", "text: {type: string, min_len: 1", "text: {type: string, min_len: 2", "31:41 change-bounds"},
		{"min_len of what is left out when empty", "min_len: 0}", "min_len: 1}", ""},
		{"min_len of a map", "min_len: 0}", "min_len: 2}", "35:55 change-bounds"},
		{"pattern", `"^[a-z]"`, `"^[b-z]"`, "31:67 change-bounds"},
		{"pattern added", `max_len: 9}`, `max_len: 9, pattern: "^a"}`, "10:60 change-bounds"},
		{"pattern removed", `, pattern: "^[a-z]"`, "", ""},

		{"tenant", "        tenant: tenant_id\n        dedupe_key: \"{tenant_id}/", "        tenant: owner_id\n        dedupe_key: \"{owner_id}/", "17:17 change-tenant, 18:21 change-dedupe-key"},
		{"tenant removed", "        tenant: tenant_id\n", "", "14:7 change-tenant"},
		{"dedupe key", "{tenant_id}/{turn_id}", "{tenant_id}/{chat_id}", "18:21 change-dedupe-key"},
		{"dedupe key removed", "        dedupe_key: \"{tenant_id}/{turn_id}\"\n", "", "14:7 change-dedupe-key"},
		{"partition key", `"{chat_id}"`, `"{turn_id}"`, "19:24 change-partition-key"},
		{"entity", "type: turn,", "type: chat,", "20:17 change-entity"},
		{"entity version", `, version: number`, "", "20:17 change-entity"},
		{"delivery", "delivery: queue", "delivery: log\n        listeners: none", "16:19 change-delivery"},
		{"publish", "topic: chat.published", "topic: chat.other", "37:18 change-publish"},
		{"broker", "kafka: {topic: chat.published}", "nats: {subject: chat.published}", "37:18 change-publish"},
		{"publish key", `, key: "{id}"`, "", "37:18 change-publish"},
		{"tombstone", `key: "{id}"}`, `key: "{id}", tombstone: true}`, "37:18 change-publish, 37:75 warning publish-tombstone-order"},
		{"no longer published", "        publish: {kafka: {topic: chat.published}, key: \"{id}\"}\n", "", "36:7 change-publish"},
		{"queue topic published", "delivery: queue", "delivery: queue\n        publish: {kafka: {topic: chat.finalized}}", "17:18 change-publish"},
		{"log topic published", "listeners: none\n        payload: {id: uuid}\n", "publish: {kafka: {topic: chat.logged}}\n        payload: {id: uuid}\nlisteners: {out: {topics: [chat/logged], publish: true}}\n", ""},
		{"topic removed", "      logged:\n        delivery: log\n        partition_key: \"{id}\"\n        listeners: none\n        payload: {id: uuid}\n", "", "12:3 change-topic-removed"},
		{"namespace renamed", "  chat:\n", "  talk:\n", "12:3 change-topic-removed x3"},

		{"go name of a field", "owner_id: uuid", "owner_id: {type: uuid, go: Owner}", "23:38 warning change-go-name"},
		{"go name of a value", "[completed, failed]", "[completed, {value: failed, go: Broken}]", "8:39 warning change-go-name"},
		{"scalar for a built-in type", "owner_id: uuid", "owner_id: turn_id", "23:21 warning change-go-name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			changed := replace(t, evolving, c.old, c.now)
			_, findings := generator.Load([]byte(changed), generator.Options{Source: "outbox.yaml", Lock: locked})
			require.Equal(t, c.want, brief(findings), "%s", findings)
			between, err := generator.Breaking([]byte(evolving), []byte(changed), "old.yaml", generator.Options{Source: "outbox.yaml"})
			require.NoError(t, err)
			require.Equal(t, c.want, brief(between), "%s", between)
			_, err = generator.Generate([]byte(changed), generator.Options{Source: "outbox.yaml", Lock: locked})
			frozen, frozenErr := generator.Freeze([]byte(changed), nil, nil, generator.Options{Source: "outbox.yaml", Lock: locked})
			if !findings.HasErrors() {
				require.NoError(t, err)
				require.NoError(t, frozenErr)
				_, findings := generator.Load([]byte(changed), generator.Options{Source: "outbox.yaml", Lock: frozen.Lock})
				require.Empty(t, findings, "what was frozen is the new state")
				return
			}
			require.Error(t, err)
			require.Error(t, frozenErr)
			if strings.Contains(c.want, "topic-removed") {
				return
			}
			for _, f := range findings {
				if f.Severity == diag.Warning {
					continue
				}
				require.Contains(t, f.Message, "is frozen")
				require.Regexp(t, `set version: 2$|raise the version of each$`, f.Message)
			}
			raised := strings.Replace(changed, "version: 1\n", "version: 2\n", 1)
			raised = strings.Replace(raised, "published:\n", "published:\n        version: 2\n", 1)
			_, findings = generator.Load([]byte(raised), generator.Options{Source: "outbox.yaml", Lock: locked})
			require.False(t, findings.HasErrors(), "the way out: %s", findings)
		})
	}
}

// brief writes findings as "line:column rule", in their order.
func brief(l diag.List) string {
	var all []string
	for _, d := range l {
		text := fmt.Sprintf("%d:%d %s", d.Pos.Line, d.Pos.Column, d.Rule)
		if d.Severity == diag.Warning {
			text = fmt.Sprintf("%d:%d warning %s", d.Pos.Line, d.Pos.Column, d.Rule)
		}
		if n := len(all); n > 0 {
			if last, times, _ := strings.Cut(all[n-1], " x"); last == text {
				count := 1
				_, _ = fmt.Sscan(times, &count)
				all[n-1] = fmt.Sprintf("%s x%d", text, count+1)
				continue
			}
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// TestEveryPairOfTypes changes the type of a field from each type to each other one. Types of one form are compatible: they
// have the same JSON, and it means the same.
func TestEveryPairOfTypes(t *testing.T) {
	t.Parallel()
	const shared = `
types:
  thing: {fields: {a: string}}
  other_thing: {fields: {a: string}}
  state: {enum: [on, off]}
  other_state: {enum: [on, off, unknown]}
  id: {scalar: uuid}
  other_id: {scalar: uuid}
  name: {scalar: string}
  small: {scalar: int32}
  large: {scalar: int64}
`
	forms := map[string]string{ // by type; an element has the form of its container with its own
		"string": "string", "bool": "bool", "int32": "int32", "int64": "int64", "float64": "float64", "uuid": "uuid",
		"timestamp": "timestamp", "date": "date", "duration": "duration", "bytes": "bytes", "json": "json",
		"thing": "struct", "other_thing": "struct", "state": "enum", "other_state": "larger enum",
		"id": "uuid", "other_id": "uuid", "name": "string", "small": "int32", "large": "int64",
	}
	var all []string
	for name := range forms {
		all = append(all, name)
	}
	for _, name := range all {
		forms["[]"+name] = "list of " + forms[name]
		forms["map[string]"+name] = "map of " + forms[name]
	}
	forms["[][]string"], forms["[]map[string]uuid"] = "list of list of string", "list of map of uuid"
	source := func(of string) []byte {
		return fmt.Appendf(nil, "version: \"1\"\npackage: events\n%snamespaces: {a: {topics: {b: {payload: {f: %q}}}}}\n", shared[1:], of)
	}
	for old, oldForm := range forms {
		locked := freeze(t, string(source(old)), nil).Lock
		for now, form := range forms {
			_, findings := generator.Load(source(now), generator.Options{Source: "outbox.yaml", Lock: locked})
			widened := strings.ReplaceAll(form, "larger enum", "enum") == oldForm // more values
			narrowed := !widened && strings.ReplaceAll(oldForm, "larger enum", "enum") == form
			switch {
			case narrowed && form != oldForm:
				require.Contains(t, brief(findings), "change-enum-value", "%s to %s", old, now)
			case form == oldForm || widened:
				require.False(t, findings.HasErrors(), "%s to %s: %s", old, now, findings)
				require.Equal(t, old != now, len(findings) == 1 && findings[0].Rule == diag.ChangeGoName, "%s to %s: %s", old, now, findings)
			default:
				require.Equal(t, "13:44 change-field-type", brief(findings), "%s to %s", old, now)
			}
		}
	}
}

// TestChangeOfSharedTypeIsOneFinding: it names every topic.
func TestChangeOfSharedTypeIsOneFinding(t *testing.T) {
	t.Parallel()
	locked := freeze(t, evolving, nil).Lock
	changed := replace(t, evolving, "tokens: {type: int64, min: 0}", "tokens: {type: int64, min: 0, max: 9}")
	_, findings := generator.Load([]byte(changed), generator.Options{Source: "outbox.yaml", Lock: locked})
	require.EqualError(t, findings, `outbox.yaml:6:42: type usage: field tokens: max: 9 was added (version 1 of topic chat/finalized is frozen, and so with chat/published): undo it, or raise the version of each [change-bounds]`)
}

// TestVersions: versions only rise, one at a time.
func TestVersions(t *testing.T) {
	t.Parallel()
	two := strings.Replace(evolving, "version: 1\n", "version: 2\n", 1)
	three := strings.Replace(evolving, "version: 1\n", "version: 3\n", 1)
	locked := freeze(t, evolving, nil).Lock
	both := freeze(t, two, locked)
	require.Equal(t, []generator.FrozenVersion{{Topic: "chat/finalized", Version: 2}}, both.Added)
	for _, c := range []struct {
		source string
		lock   []byte
		want   string
	}{
		{two, locked, ""},
		{three, locked, "outbox.yaml:15:18: version: 3 of topic chat/finalized skips 2, so no event could be brought from 1 to 3: set version: 2 [lock-gap]"},
		{three, both.Lock, ""},
		{evolving, both.Lock, "outbox.yaml:15:18: version: 1 of topic chat/finalized is lower than 2, which is frozen: set version: 2 [change-version]"},
		{replace(t, two, "delivery: queue", "delivery: log\n        listeners: none"), locked, "outbox.yaml:16:19: warning: delivery: topic chat/finalized is now log and was queue in version 1: events of that version that are not delivered yet will wait forever, so drain them first, or declare a new topic [change-delivery]"},
	} {
		_, findings := generator.Load([]byte(c.source), generator.Options{Source: "outbox.yaml", Lock: c.lock})
		require.Equal(t, c.want, findings.Error())
	}
	between, err := generator.Breaking([]byte(two), []byte(evolving), "old.yaml", generator.Options{Source: "outbox.yaml"})
	require.NoError(t, err)
	require.EqualError(t, between, "outbox.yaml:15:18: version: 1 of topic chat/finalized is lower than 2: set version: 2 [change-version]")
}

// TestFreezeIsStable: a lock that is parsed and frozen again is the same, for every golden source and for random ones.
func TestFreezeIsStable(t *testing.T) {
	t.Parallel()
	sources := []string{evolving, string(minichat(t))}
	for _, name := range goldenCases(t) {
		sources = append(sources, string(read(t, "testdata/"+name, "outbox.yaml")))
	}
	for _, source := range sources {
		first := freeze(t, source, nil)
		again := freeze(t, source, first.Lock)
		require.Equal(t, string(first.Lock), string(again.Lock))
		require.Empty(t, again.Added)
		require.Empty(t, again.Changed)
		withExamples, err := generator.Freeze([]byte(source), first.Examples, nil, generator.Options{Lock: first.Lock})
		require.NoError(t, err)
		require.Equal(t, string(first.Examples), string(withExamples.Examples))
	}
}

// TestExamplesAreKept: an example stays one when its version changes in a compatible way.
func TestExamplesAreKept(t *testing.T) {
	t.Parallel()
	first := freeze(t, evolving, nil)
	changed := replace(t, evolving, "score:", "extra_note: string?\n          score:")
	second, err := generator.Freeze([]byte(changed), first.Examples, nil, generator.Options{Source: "outbox.yaml", Lock: first.Lock})
	require.NoError(t, err)
	require.Equal(t, []generator.FrozenVersion{{Topic: "chat/finalized", Version: 1}}, second.Changed)
	var before, after map[string]map[string][]json.RawMessage
	require.NoError(t, json.Unmarshal(first.Examples, &before))
	require.NoError(t, json.Unmarshal(second.Examples, &after))
	old, now := before["chat/finalized"]["1"], after["chat/finalized"]["1"]
	require.Equal(t, old, now[:len(old)])
	require.Greater(t, len(now), len(old))
	require.Contains(t, string(now[len(old)]), "extra_note")

	_, err = generator.Freeze([]byte(changed), []byte("[]"), nil, generator.Options{Source: "outbox.yaml", Lock: first.Lock})
	require.ErrorAs(t, err, new(*generator.ExamplesError))
}

// TestDamagedLock: whatever happens to a lock, there is a finding in it with a way out, or it still means the same.
func TestDamagedLock(t *testing.T) {
	t.Parallel()
	two := strings.Replace(evolving, "version: 1\n", "version: 2\n", 1)
	locked := string(freeze(t, two, freeze(t, evolving, nil).Lock).Lock)
	for _, c := range []struct{ name, old, now, want string }{
		{"empty", locked, "", `^outbox.lock.yaml:1:1: missing key "lock"`},
		{"no YAML", "topics:\n", "topics: [\n", `^outbox.lock.yaml:\d+:\d+: not valid YAML`},
		{"merge conflict", "  chat/finalized:\n", "<<<<<<< HEAD\n  chat/finalized:\n", `^outbox.lock.yaml:\d+:\d+: not valid YAML`},
		{"another format", `lock: "1"`, `lock: "2"`, `^outbox.lock.yaml:2:7: .*\[lock-invalid\]$`},
		{"a field", "owner_id: uuid", "owner_id: string", `^outbox.lock.yaml:5:5: version 1 of topic chat/finalized was changed by hand`},
		{"a bound", "max_len: 100", "max_len: 1000", `changed by hand`},
		{"a field removed", "        owner_id: uuid\n", "", `changed by hand`},
		{"a key", "unknown", "unknown", ``},
		{"a version removed", "", "", `^outbox.lock.yaml:\d+:5: version 3 of topic chat/finalized follows version 1`},
		{"a version renamed", "    2:\n", "    3:\n", `changed by hand`},
		{"a version that is no number", "    2:\n", "    two:\n", `two is not a valid version of topic chat/finalized`},
		{"a topic renamed", "  chat/logged:\n", "  chat/written:\n", `changed by hand`},
		{"a sum", `sum: "`, `sum: "0`, `changed by hand`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var damaged string
			switch c.name {
			case "a key":
				damaged = strings.Replace(locked, "      delivery: queue\n", "      delivery: queue\n      doc: x\n", 1)
				c.want = `^outbox.lock.yaml:\d+:7: unknown key "doc"`
			case "a version removed":
				three := strings.Replace(evolving, "version: 1\n", "version: 3\n", 1)
				all := string(freeze(t, three, []byte(locked)).Lock)
				from, to := strings.Index(all, "    2:\n"), strings.Index(all, "    3:\n")
				damaged = all[:from] + all[to:]
			default:
				damaged = strings.Replace(locked, c.old, c.now, 1)
			}
			_, findings := generator.Load([]byte(two), generator.Options{Source: "outbox.yaml", Lock: []byte(damaged)})
			require.Len(t, findings, 1, "%s", findings)
			require.Regexp(t, c.want, findings.Error())
			require.Contains(t, findings[0].Message, "restore outbox.lock.yaml from version control")
			_, err := generator.Freeze([]byte(two), nil, nil, generator.Options{Source: "outbox.yaml", Lock: []byte(damaged)})
			require.Error(t, err, "freeze does not write over it")
		})
	}
	spaced := regexp.MustCompile(`(?m)^( +)`).ReplaceAllString(locked, "$1$1")
	_, findings := generator.Load([]byte(two), generator.Options{Source: "outbox.yaml", Lock: []byte(spaced)})
	require.Empty(t, findings, "a formatter may change the layout")
}

// TestRetire: a topic that is gone, and versions that nobody needs any more, can be removed; nothing else can.
func TestRetire(t *testing.T) {
	t.Parallel()
	two := strings.Replace(evolving, "version: 1\n", "version: 2\n", 1)
	locked := freeze(t, two, freeze(t, evolving, nil).Lock).Lock
	gone := replace(t, two, "      logged:\n        delivery: log\n        partition_key: \"{id}\"\n        listeners: none\n        payload: {id: uuid}\n", "")

	retired := freeze(t, gone, locked, "chat/logged", "chat/finalized@1")
	require.Equal(t, []generator.FrozenVersion{{Topic: "chat/logged", Version: 1}, {Topic: "chat/finalized", Version: 1}}, retired.Retired)
	require.NotContains(t, string(retired.Lock), "chat/logged")
	require.NotContains(t, string(retired.Examples), "chat/logged")
	files, err := generator.Generate([]byte(gone), generator.Options{Lock: retired.Lock})
	require.NoError(t, err)
	for _, f := range files {
		require.NotContains(t, string(f.Content), "FinalizedV1")
	}
	for retire, want := range map[string]string{
		"chat/logged":      "retire chat/logged: the YAML declares this topic: remove it there first, or name its oldest versions, as in chat/logged@1",
		"chat/loged":       `retire chat/loged: the lock has no such topic (did you mean "chat/logged"?)`,
		"chat/finalized@2": "retire chat/finalized@2: it is the newest version of chat/finalized, which new events have",
		"chat/finalized@7": "retire chat/finalized@7: the lock has versions 1 to 2 of chat/finalized",
		"chat/finalized@x": "retire chat/finalized@x: the lock has versions 1 to 2 of chat/finalized",
	} {
		_, err := generator.Freeze([]byte(two), nil, []string{retire}, generator.Options{Source: "outbox.yaml", Lock: locked})
		require.EqualError(t, err, want)
	}
}

// TestHistoryIsGenerated: the payload of an older version has its own shared types where they differ, and its step.
func TestHistoryIsGenerated(t *testing.T) {
	t.Parallel()
	locked := freeze(t, evolving, nil).Lock
	two := strings.Replace(evolving, "version: 1\n", "version: 2\n", 1)
	two = replace(t, two, "tokens: {type: int64, min: 0}", "tokens: {type: int32, min: 0}")
	two = strings.Replace(two, "published:\n", "published:\n        version: 2\n", 1)
	two = replace(t, two, "package: events", "package: events\nconsumer: {package: chatevents}")
	both := freeze(t, two, locked).Lock
	three := strings.Replace(two, "version: 2\n        delivery", "version: 3\n        delivery", 1)
	files := make(map[string]string)
	made := generate(t, []byte(three), generator.Options{Source: "outbox.yaml", Lock: both})
	for _, f := range made {
		files[f.Name] = string(f.Content)
	}
	v1 := files["chat.finalized.v1.outbox.go"]
	require.Contains(t, v1, "//\tfunc upcastFinalizedV1(old FinalizedV1) (FinalizedV2, error)\n")
	require.Regexp(t, `Usage +FinalizedV1Usage `, v1)
	require.Contains(t, v1, "type FinalizedV1Usage struct")
	require.Regexp(t, `Outcome +Outcome `, v1, "the type of today, which is the same")
	require.NotContains(t, v1, "Enqueue")
	require.NotContains(t, files["chat.finalized.v2.outbox.go"], "FinalizedV2Usage")
	require.Contains(t, files["chat.finalized.outbox.go"], "payload.Upcast[FinalizedV1, FinalizedV2](1, upcastFinalizedV1),\n")
	require.Contains(t, files["chat.finalized.outbox.go"], "payload.Upcast[FinalizedV2, Finalized](2, upcastFinalizedV2),\n")
	require.Contains(t, files["chatevents/chat.published.v1.outbox.go"], "type PublishedV1Usage struct")
	require.Contains(t, files["chatevents/chat.published.outbox.go"], "payload.Upcast[PublishedV1, Published](1, upcastPublishedV1),\n")

	steps := generator.File{Name: "upcast.go", Content: []byte(`package events

func upcastFinalizedV1(old FinalizedV1) (FinalizedV2, error)   { panic(old) }
func upcastFinalizedV2(old FinalizedV2) (Finalized, error)     { panic(old) }
func upcastPublishedV1(old PublishedV1) (Published, error)     { panic(old) }
`)}
	var own []generator.File
	for _, f := range made {
		if !strings.Contains(f.Name, "/") {
			own = append(own, f)
		}
	}
	typeCheck(t, append(own, steps))
	for _, wrong := range []struct{ old, now, want string }{
		{"func upcastFinalizedV1", "func upcastOther", "undefined: upcastFinalizedV1"},
		{"(FinalizedV2, error)", "(Finalized, error)", "upcastFinalizedV1"},
	} {
		bad := generator.File{Name: steps.Name, Content: bytes.Replace(steps.Content, []byte(wrong.old), []byte(wrong.now), 1)}
		var failed failures
		func() {
			defer func() { _ = recover() }()
			typeCheck(&failed, append(own[:len(own):len(own)], bad))
		}()
		require.Positive(t, failed, wrong.want)
	}
}

// TestHistoryTakesNames: the names of older versions collide like all others.
func TestHistoryTakesNames(t *testing.T) {
	t.Parallel()
	locked := freeze(t, evolving, nil).Lock
	two := strings.Replace(evolving, "version: 1\n", "version: 2\n", 1)
	two = replace(t, two, "types:\n", "types:\n  finalized_v1: {scalar: uuid}\n")
	_, err := generator.Generate([]byte(two), generator.Options{Source: "outbox.yaml", Lock: locked})
	var findings diag.List
	require.True(t, errors.As(err, &findings))
	require.Equal(t, "15:7 name-collision", brief(findings))
}

// TestClasses: each rule about a change has a class.
func TestClasses(t *testing.T) {
	t.Parallel()
	for _, rule := range diag.Rules() {
		require.Equal(t, strings.HasPrefix(string(rule.ID), "change-") || rule.ID == diag.LockGap, evolve.ClassOf(rule.ID) != "", rule.ID)
	}
}

// signature finds what the doc comment of an older payload says to write.
var signature = regexp.MustCompile(`(?m)^//\t(func upcast.*)$`)

// TestRandomHistoryTypeChecks raises the version of every topic of random files and changes their shared types. What is
// generated then compiles with the functions that it asks for.
func TestRandomHistoryTypeChecks(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	topic := regexp.MustCompile(`(?m)^      (t[a-z0-9_]+):$`)
	rapid.Check(t, func(rt *rapid.T) {
		source := randomyaml.Source(rt)
		locked := freeze(rt, source, nil).Lock
		raised := topic.ReplaceAllString(source, "$0\n        version: 2")
		raised = strings.ReplaceAll(raised, "[one, two-three", "[another, two-three")
		raised = strings.ReplaceAll(raised, "      f0:", "      g0:")
		_, findings := generator.Load([]byte(raised), generator.Options{Source: "outbox.yaml", Lock: locked})
		if findings.HasErrors() {
			rt.Skip("a version was set, or a name is taken")
		}
		files, err := generator.Generate([]byte(raised), generator.Options{Lock: locked})
		require.NoError(rt, err, raised)
		own := make(map[string]*bytes.Buffer) // by folder
		for _, f := range files {
			for _, found := range signature.FindAllSubmatch(f.Content, -1) {
				folder := path.Dir(f.Name)
				if own[folder] == nil {
					pkg := regexp.MustCompile(`(?m)^package .*$`).Find(f.Content)
					own[folder] = bytes.NewBufferString(string(pkg) + "\n")
				}
				fmt.Fprintf(own[folder], "%s { panic(old) }\n", found[1])
			}
		}
		require.NotEmpty(rt, own, raised)
		for folder, content := range own {
			files = append(files, generator.File{Name: path.Join(folder, "upcast.go"), Content: content.Bytes()})
		}
		typeCheck(rt, files)
		again := freeze(rt, raised, locked)
		require.NotEmpty(rt, again.Added)
	})
}

// FuzzLock: whatever stands in a lock, there is a Model or a finding.
func FuzzLock(f *testing.F) {
	source := []byte(evolving)
	locked := freeze(f, evolving, nil).Lock
	f.Add(locked)
	f.Add([]byte("lock: \"1\"\ntopics: {a/b: {1: {sum: x, delivery: log, payload: {}}}}\n"))
	f.Add([]byte("lock: \"1\"\ntopics: {\"\": {1: {sum: x, delivery: queue, payload: {a: b}, types: {b: {fields: {a: b}}}}}}\n"))
	f.Fuzz(func(t *testing.T, lock []byte) {
		m, findings := generator.Load(source, generator.Options{Source: "outbox.yaml", Lock: lock})
		require.Equal(t, findings.HasErrors(), m == nil)
	})
}

// TestRenamedTopic: the history of a topic follows it to its new name, and so do its examples.
func TestRenamedTopic(t *testing.T) {
	t.Parallel()
	frozen := freeze(t, evolving, nil)
	renamed := replace(t, evolving, "      logged:\n", "      written:\n        renamed_from: [logged]\n")
	_, findings := generator.Load([]byte(renamed), generator.Options{Source: "outbox.yaml", Lock: frozen.Lock})
	require.Empty(t, findings)
	changed := replace(t, renamed, "listeners: none\n        payload: {id: uuid}", "listeners: none\n        payload: {id: string}")
	_, findings = generator.Load([]byte(changed), generator.Options{Source: "outbox.yaml", Lock: frozen.Lock})
	require.Equal(t, "44:23 change-field-type", brief(findings))
	between, err := generator.Breaking([]byte(evolving), []byte(changed), "old.yaml", generator.Options{Source: "outbox.yaml"})
	require.NoError(t, err)
	require.Equal(t, "39:7 warning change-go-name, 44:23 change-field-type", brief(between))

	own := strings.ReplaceAll(string(frozen.Examples), "0190d5a5-7c2e-7d6b-8d3c-9b1f6a2e4c70", "0190d5a5-7c2e-7d6b-8d3c-9b1f6a2e4c71")
	again, err := generator.Freeze([]byte(renamed), []byte(own), nil, generator.Options{Source: "outbox.yaml", Lock: frozen.Lock})
	require.NoError(t, err)
	require.NotContains(t, string(again.Lock), "chat/logged")
	require.Contains(t, string(again.Lock), "  chat/written:\n    1:\n")
	require.Contains(t, string(again.Examples), "\"chat/written\": {\n    \"1\": [\n      {\"id\":\"0190d5a5-7c2e-7d6b-8d3c-9b1f6a2e4c71\"},")

	raised := replace(t, changed, "      written:\n", "      written:\n        version: 2\n")
	files := generate(t, []byte(raised), generator.Options{Source: "outbox.yaml", Lock: frozen.Lock})
	require.Contains(t, fmt.Sprint(files), "chat.written.v1.outbox.go")

	// Both names were frozen, and one topic now takes the events of both.
	both := replace(t, evolving, "      logged:\n", "      other: {delivery: log, partition_key: \"{id}\", listeners: none, payload: {id: uuid, more: \"string?\"}}\n      logged:\n")
	locked := freeze(t, both, nil).Lock
	_, findings = generator.Load([]byte(replace(t, evolving, "      logged:\n", "      logged:\n        renamed_from: [other]\n")), generator.Options{Source: "outbox.yaml", Lock: locked})
	require.Equal(t, "44:18 change-field-removed", brief(findings))
}
