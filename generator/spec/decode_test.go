package spec_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

func TestDecodeKeepsOrderValuesAndPositions(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("testdata/full.yaml")
	require.NoError(t, err)
	s, findings := spec.Decode(source, "dir/full.yaml")
	require.Empty(t, findings)

	pos := func(line, column int) diag.Pos {
		return diag.Pos{File: "dir/full.yaml", Line: line, Column: column}
	}
	require.Equal(t, "dir/full.yaml", s.File)
	require.Equal(t, spec.Value[string]{V: "events", Pos: pos(3, 10)}, s.Package)
	require.Equal(t, spec.Value[time.Duration]{V: 30 * time.Minute, Pos: pos(6, 56)}, s.Defaults.Retry.MaxDelay)
	require.Equal(t, spec.Value[int64]{V: 25, Pos: pos(6, 25)}, s.Defaults.Retry.MaxAttempts)

	require.Len(t, s.Types.Items, 5)
	usage, outcome := s.Types.Items[0], s.Types.Items[1]
	require.Equal(t, spec.Value[string]{V: "usage", Pos: pos(11, 3)}, usage.Name)
	require.Equal(t, spec.Bound{Text: "1_000_000", Number: true}, usage.Fields.Items[0].Max.V)
	require.Equal(t, spec.Bound{Text: "1ms"}, usage.Fields.Items[1].Min.V)
	require.False(t, usage.Enum.Set())
	require.Equal(t, spec.EnumValue{Value: spec.Value[string]{V: "failed", Pos: pos(18, 23)}}, outcome.Enum.Items[1])
	require.Equal(t, spec.EnumValue{
		Value: spec.Value[string]{V: "N/A", Pos: pos(18, 48)}, Go: spec.Value[string]{V: "NotApplicable", Pos: pos(18, 59)},
	}, outcome.Enum.Items[3])
	require.Equal(t, spec.Value[string]{V: "uuid", Pos: pos(19, 21)}, s.Types.Items[2].Scalar)

	topic := s.Namespaces.Items[0].Topics.Items[0]
	require.Equal(t, int64(2), topic.Version.V)
	require.Equal(t, "{tenant_id}/{turn_id}", topic.DedupeKey.V)
	require.Equal(t, "none", topic.Policy.Wake.V)
	require.Equal(t, spec.Value[string]{V: "tenant", Pos: pos(35, 19)}, topic.Fairness)
	require.Equal(t, "turn_version", topic.Entity.Version.V)
	var names []string
	for _, f := range topic.Payload.Items {
		names = append(names, f.Name.V)
	}
	require.Equal(t, "tenant_id turn_id turn_version outcome usage model note score tags limits", strings.Join(names, " "))
	require.Equal(t, "uuid", topic.Payload.Items[0].Type.V)
	require.Equal(t, spec.Masked, topic.Payload.Items[6].Sensitive.V)

	started := s.Namespaces.Items[0].Topics.Items[1]
	require.True(t, started.Payload.Set())
	require.Empty(t, started.Payload.Items)
	require.False(t, started.Entity.Pos.IsValid())
	archived, companion := s.Namespaces.Items[0].Topics.Items[2], s.Listeners.Items[0]
	require.Equal(t, spec.Value[string]{V: "none", Pos: pos(61, 20)}, archived.Listeners)
	require.Equal(t, "mini_chat/turn_started", companion.Topics.Items[0].V)
	require.Equal(t, spec.Value[string]{V: "park_key", Pos: pos(96, 17)}, companion.OnFailure)
	require.Equal(t, spec.Value[int64]{V: 1, Pos: pos(97, 18)}, companion.Concurrency)
	require.Equal(t, spec.Value[int64]{V: 8, Pos: pos(98, 13)}, companion.Shards)
	require.Equal(t, spec.Batch{
		Pos: pos(99, 12), Size: spec.Value[int64]{V: 100, Pos: pos(99, 19)}, Wait: spec.Value[time.Duration]{Pos: pos(99, 30)},
	}, companion.Batch)
	require.Equal(t, spec.Value[spec.Rate]{V: spec.Rate{Events: 50, Period: 2 * time.Hour}, Pos: pos(100, 11)}, companion.Rate)
	require.Equal(t, spec.Value[time.Duration]{V: 45 * time.Second, Pos: pos(101, 12)}, companion.Lease)
	require.Equal(t, spec.Value[time.Duration]{V: 10 * time.Minute, Pos: pos(102, 14)}, companion.MaxLag)

	require.Equal(t, spec.Value[string]{V: "sc.domain.turn", Pos: pos(42, 26)}, topic.Publish.Kafka.Destination)
	require.False(t, topic.Publish.NATS.Pos.IsValid())
	require.Equal(t, "{tenant_id}/{turn_id}", topic.Publish.Key.V)
	require.Equal(t, spec.Value[string]{V: "outcome", Pos: pos(44, 33)}, topic.Publish.Headers.Items[1].Name)
	require.Equal(t, "{outcome}", topic.Publish.Headers.Items[1].Value.V)
	require.Equal(t, "turns.queued", s.Namespaces.Items[0].Topics.Items[3].Publish.NATS.Destination.V)
	require.Equal(t, "billing", s.Namespaces.Items[0].Topics.Items[4].Publish.Webhook.Destination.V)
	topics := s.Namespaces.Items[0].Topics.Items
	require.Equal(t, "sqs", topics[6].Publish.Custom.Name.V)
	require.Equal(t, "turns", topics[6].Publish.Custom.Destination.V)
	require.Equal(t, "queue", topics[7].Publish.Custom.Field.V)
	require.Equal(t, "customer_id", topics[8].Publish.Webhook.Field.V)
	require.Equal(t, []spec.Limit{
		{
			Pos: pos(83, 13), Per: spec.Value[string]{V: "destination", Pos: pos(83, 19)},
			Rate: spec.Value[spec.Rate]{V: spec.Rate{Events: 100, Period: time.Second}, Pos: pos(83, 38)},
		},
		{
			Pos: pos(84, 13), Per: spec.Value[string]{V: "{customer_id}/x", Pos: pos(84, 19)},
			Concurrency: spec.Value[int64]{V: 5, Pos: pos(84, 51)},
			Rate:        spec.Value[spec.Rate]{V: spec.Rate{Events: 10, Period: 90 * time.Second}, Pos: pos(84, 60)},
		},
	}, topics[8].Limits.Items)
	require.Equal(t, int64(500), topics[9].Batch.Size.V)
	require.Equal(t, 200*time.Millisecond, topics[9].Batch.Wait.V)
	require.Equal(t, "/queues/mail", topics[10].Publish.AMQP.Destination.V)
	require.Equal(t, "turns", topics[11].Publish.Redis.Destination.V)
	require.True(t, s.Listeners.Items[1].Publish.V)
	require.Equal(t, "chatevents", s.Consumer.Package.V)
}

// The rest of a file is still read after a finding, so that the model can report on it.
func TestDecodeGoesOnAfterFindings(t *testing.T) {
	t.Parallel()
	s, findings := spec.Decode([]byte(`version: "1"
package: [events]
namespaces:
  mini_chat:
    topics:
      turn_finalized:
        lease: soon
        tenant: tenant_id
        payload: {tenant_id: 5, turn_id: uuid}
`), "outbox.yaml")
	require.Len(t, findings, 3)
	topic := s.Namespaces.Items[0].Topics.Items[0]
	require.False(t, topic.Policy.Lease.Set())
	require.Equal(t, "tenant_id", topic.Tenant.V)
	require.Len(t, topic.Payload.Items, 2, "a field with a bad type still exists")
	require.False(t, topic.Payload.Items[0].Type.Set())
}

func TestDecodeCountsColumnsInCodePointsAndTakesAnyLineEnd(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"\n", "\r\n"} {
		source := "\uFEFF" + strings.ReplaceAll("version: \"1\"\npackage: events\nnamespaces: {}\ndefaults: {wake: \"dé\u4e16\", lease: 5}\n", "\n", end)
		_, findings := spec.Decode([]byte(source), "outbox.yaml")
		require.EqualError(t, findings, `outbox.yaml:3:13: namespaces: at least one entry is required at the top level [empty-section]
outbox.yaml:4:18: wake: unknown value "dé世": use doorbell or none [unknown-value]
outbox.yaml:4:32: lease: must be a duration such as 30s, 5m or 168h, not the number 5 [wrong-type]`)
	}
}

func TestDecodeReadsNumbersAsYAMLWritesThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "-1": -1, "+5": 5, "1_000": 1000, "0x1F": 31, "0o17": 15, "0b101": 5,
		"9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63,
	} {
		got, err := spec.ParseInt(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	_, err := spec.ParseInt("9223372036854775808")
	require.Error(t, err)
	for _, text := range []string{".inf", "-.inf", ".nan", "1e999", "x", ""} {
		_, err := spec.ParseFloat(text)
		require.Error(t, err, text)
	}
	for text, want := range map[string]float64{"1.5": 1.5, "-1e3": -1000, "1_0.5": 10.5, "7": 7} {
		got, err := spec.ParseFloat(text)
		require.NoError(t, err, text)
		require.InDelta(t, want, got, 0)
	}
}

func TestShowQuotesWhatIsNoPlainWord(t *testing.T) {
	t.Parallel()
	require.Equal(t, "turn_id", spec.Show("turn_id"))
	require.Equal(t, `""`, spec.Show(""))
	require.Equal(t, `"a b"`, spec.Show("a b"))
	require.Equal(t, `"\x1b"`, spec.Show("\x1b"))
	require.Equal(t, `"`+strings.Repeat("a", 60)+`..."`, spec.Show(strings.Repeat("a", 100)))
}
