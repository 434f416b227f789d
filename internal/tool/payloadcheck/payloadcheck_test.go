package payloadcheck_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/payloadcheck"
)

const source = `
version: "1"
package: events
types:
  usage:
    fields:
      tokens: {type: int32, min: 0, max: 10}
      note: string?
  outcome: {enum: [completed, failed]}
  turn_id: {scalar: uuid}
  code: {scalar: string, pattern: "^[a-z]+$"}
namespaces:
  chat:
    topics:
      ended:
        tenant: tenant_id
        dedupe_key: "{tenant_id}/{turn_id}"
        partition_key: "{model}"
        entity: {type: turn, id: "{turn_id}", version: n}
        payload:
          tenant_id: uuid
          turn_id: turn_id
          outcome: outcome
          usage: usage
          n: int64
          model: {type: string, max_len: 5, min_len: 2}
          code: code?
          ok: bool?
          rate: {type: "float64?", max: 1.5}
          raw: {type: "bytes?", max_len: 3}
          any: json?
          tags: {type: "[]string", max_len: 2}
          codes: "map[string]int32?"
          at: timestamp
          day: date?
          took: {type: "duration?", min: 1s}
`

func topic(t *testing.T) *model.Topic {
	t.Helper()
	m, findings := model.Load([]byte(source), "outbox.yaml")
	require.False(t, findings.HasErrors(), "%v", findings)
	return m.Namespaces[0].Topics[0]
}

const good = `{"tenant_id": "6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab", "turn_id": "6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eac", "outcome": "failed",
	"usage": {"tokens": 3, "note": "x"}, "n": 9007199254740993, "model": "m-1", "code": "abc", "ok": true, "rate": 1.5, "raw": "YWJj",
	"any": {"x": [1]}, "tags": ["a", "b"], "codes": {"k": 1}, "at": "2026-05-01T12:00:00.5Z", "day": "2026-05-01", "took": 1000000000}`

func TestCheckFindsEveryFieldThatDoesNotFit(t *testing.T) {
	t.Parallel()
	of := topic(t)
	require.Empty(t, payloadcheck.Check(of, json.RawMessage(good)))
	change := func(field, value string) string {
		var members map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(good), &members))
		if delete(members, field); value != "" {
			members[field] = json.RawMessage(value)
		}
		text, err := json.Marshal(members)
		require.NoError(t, err)
		return string(text)
	}
	for _, c := range []struct{ field, value, want string }{
		{"tenant_id", "", "tenant_id is not set"},
		{"tenant_id", `null`, "tenant_id is not set"},
		{"tenant_id", `"00000000-0000-0000-0000-000000000000"`, "tenant_id is not set"},
		{"turn_id", `"x"`, "turn_id is not a UUID"},
		{"turn_id", `7`, "turn_id is not a UUID"},
		{"turn_id", `"00000000-0000-0000-0000-000000000000"`, "turn_id is not set"},
		{"outcome", `"secret"`, "outcome is not one of completed, failed"},
		{"outcome", `1`, "outcome is not a string"},
		{"usage", `[]`, "usage is not an object"},
		{"usage", `{}`, "usage.tokens is not set"},
		{"usage", `{"tokens": -1}`, "usage.tokens is below 0"},
		{"usage", `{"tokens": 11, "nota": 1}`, "usage.tokens is above 10; usage.nota is not a field in the YAML"},
		{"n", `1.5`, "n is not a whole number of 64 bits"},
		{"n", `"7"`, "n is not a whole number of 64 bits"},
		{"n", `99999999999999999999`, "n is not a whole number of 64 bits"},
		{"model", `"x"`, "model has 1 character, at least 2 needed"},
		{"model", `"xxxxxx"`, "model has 6 characters, at most 5 allowed"},
		{"model", `"x\u0000"`, "model has a NUL byte"},
		{"model", `{}`, "model is not a string"},
		{"code", `"X"`, "code does not match ^[a-z]+$"},
		{"code", `null`, ""},
		{"code", ``, ""},
		{"ok", `"true"`, "ok is not true or false"},
		{"rate", `2`, "rate is above 1.5"},
		{"rate", `"1"`, "rate is not a number of 64 bits"},
		{"raw", `"%"`, "raw is not a string in base64"},
		{"raw", `"YWJjZA=="`, "raw has 4 bytes, at most 3 allowed"},
		{"tags", ``, "tags is not set"},
		{"tags", `null`, "tags is not set"},
		{"tags", `{}`, "tags is not a list"},
		{"tags", `[1]`, "tags[0] is not a string"},
		{"tags", `["a", "b", "c"]`, "tags has 3 items, at most 2 allowed"},
		{"tags", `[null]`, "tags[0] is null"},
		{"codes", `{"secret": "x"}`, "codes[*] is not a whole number of 32 bits"},
		{"codes", `[]`, "codes is not an object"},
		{"at", `"yesterday"`, "at is not a time like 2026-05-01T12:00:00Z"},
		{"day", `"2026-02-30"`, "day is not a date like 2026-05-01"},
		{"took", `5`, "took is below 1s"},
		{"extra", `"secret"`, "extra is not a field in the YAML"},
	} {
		data := change(c.field, c.value)
		var texts []string
		for _, f := range payloadcheck.Check(of, json.RawMessage(data)) {
			texts = append(texts, f.Error())
		}
		require.Equal(t, c.want, strings.Join(texts, "; "), "%s: %s", c.field, c.value)
		require.NotContains(t, strings.Join(texts, "; "), "secret\"")
	}
	for data, want := range map[string]string{
		"": "the value is not valid JSON", "{": "the value is not valid JSON", "{} {}": "the value is more than one JSON value",
		`{"a": 1, "a": 2}`: "the value has an object with the same name twice", "[]": "the value is not an object", "null": "the value is not an object",
	} {
		found := payloadcheck.Check(of, json.RawMessage(data))
		require.NotEmpty(t, found, data)
		require.Equal(t, want, found[0].Error(), data)
	}
}

func TestChangedNamesTheFieldsOfKeys(t *testing.T) {
	t.Parallel()
	of := topic(t)
	require.Empty(t, payloadcheck.Changed(of, json.RawMessage(good), json.RawMessage(strings.Replace(good, `"failed"`, `"completed"`, 1))))
	edited := strings.NewReplacer("9eab", "9eaf", "9eac", "9ead", "m-1", "m-2", "9007199254740993", "9007199254740992").Replace(good)
	var texts []string
	for _, f := range payloadcheck.Changed(of, json.RawMessage(good), json.RawMessage(edited)) {
		texts = append(texts, f.Error())
	}
	require.Equal(t, []string{
		"model belongs to the partition key and must stay as it was", "n belongs to the entity and must stay as it was",
		"tenant_id belongs to the tenant and must stay as it was", "turn_id belongs to the dedupe key and must stay as it was",
	}, texts)
}
