package payloadcheck_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/payloadcheck"
)

// FuzzCheck: whatever somebody has edited, what is wrong with it is said with names of fields and without values, and what is
// accepted is one JSON object.
func FuzzCheck(f *testing.F) {
	m, findings := model.Load([]byte(source), "outbox.yaml")
	require.False(f, findings.HasErrors(), "%v", findings)
	topic := m.Namespaces[0].Topics[0]
	for _, text := range []string{
		`{"tenant_id":"7f000001-89ab-4cde-8f01-23456789abcd","turn_id":"7f000001-89ab-4cde-8f01-23456789abcd","outcome":"failed","usage":{"tokens":1},"n":1,"model":"gpt","tags":[],"at":"2026-05-01T12:00:00Z"}`,
		`{"n":9223372036854775808,"rate":1e999,"raw":"*","tags":[null],"codes":{"a":2147483648},"took":"1","day":"2026-02-30","usage":null}`,
		`{} {}`, `[]`, `{"n":1,"n":2}`, `{"usage":` + strings.Repeat(`{"usage":`, 200) + `1` + strings.Repeat(`}`, 201),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		wrong := payloadcheck.Check(topic, data)
		for _, e := range wrong {
			require.Less(t, len(e.Message), 300)
		}
		if len(wrong) == 0 {
			var object map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(data, &object))
			require.NotNil(t, object)
		}
		_ = payloadcheck.Changed(topic, data, []byte(`{}`))
	})
}
