package compose_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/compose"
)

const source = `
version: "1"
package: events
types:
  outcome: {enum: [completed, failed]}
namespaces:
  chat:
    topics:
      ended:
        tenant: tenant_id
        dedupe_key: "{tenant_id}/turn-{name}/{day}"
        partition_key: "{outcome}"
        entity: {type: turn, id: "{name}", version: n}
        payload:
          tenant_id: uuid
          name: string
          outcome: outcome
          day: date
          n: int64
`

func topic(t testing.TB) *model.Topic {
	t.Helper()
	m, findings := model.Load([]byte(source), "outbox.yaml")
	require.False(t, findings.HasErrors(), "%v", findings)
	return m.Namespaces[0].Topics[0]
}

const good = `{"tenant_id": "6F1F4B0E-3c8a-4a57-9d2e-0f6b7c8d9eab", "name": "a/b%", "outcome": "failed", "day": "2026-05-01", "n": 9007199254740993}`

// TestKeys: they are those of package eventkey, and an empty part of one is a fault.
func TestKeys(t *testing.T) {
	t.Parallel()
	e, found := compose.Of(topic(t), []byte(good))
	require.Empty(t, found)
	require.Equal(t, "6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab", e.TenantID.UUID.String())
	require.Equal(t, "6f1f4b0e-3c8a-4a57-9d2e-0f6b7c8d9eab/turn-a%2Fb%25/2026-05-01", e.DedupeKey)
	require.Equal(t, "failed", e.PartitionKey)
	require.Equal(t, "turn a%2Fb%25 9007199254740993", strings.Join([]string{e.EntityType, e.EntityID, "9007199254740993"}, " "))
	require.EqualValues(t, 9007199254740993, e.EntityVersion)
	require.JSONEq(t, good, string(e.Payload))
	_, found = compose.Of(topic(t), []byte(strings.Replace(good, "a/b%", "", 1)))
	require.Equal(t, "name is empty, and is a part of the dedupe key; name is empty, and is a part of the entity id", compose.Text(found))
}

// FuzzOf: whatever the text is, nothing panics, and an event has its tenant in front of its dedupe key.
func FuzzOf(f *testing.F) {
	f.Add(good)
	f.Add(strings.Replace(good, "2026-05-01", "", 1))
	f.Add(`{"tenant_id": null}`)
	of := topic(f)
	f.Fuzz(func(t *testing.T, data string) {
		e, found := compose.Of(of, []byte(data))
		if len(found) > 0 {
			require.NotEmpty(t, compose.Text(found))
			return
		}
		require.True(t, strings.HasPrefix(e.DedupeKey, e.TenantID.UUID.String()+"/turn-"))
		require.NotEmpty(t, e.PartitionKey)
		require.NotEmpty(t, e.EntityID)
	})
}
