package otel_test

import (
	"context"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestDocs: the table in docs/operate/telemetry.md has every metric with its unit, and no other.
func TestDocs(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	runner, e := outbox.Runner{Listener: "ears"}, outbox.Event{Namespace: "shop", Topic: "placed"}
	o := r.Observer()
	o.Enqueued(t.Context(), outbox.Enqueued{Namespace: "shop", Topic: "placed", Events: 1, Duplicates: 1})
	o.Claimed(runner, []outbox.Event{e}, 1)
	o.Settled(runner, e, outbox.SettledDead)
	o.Dead(runner, e, nil)
	o.Lost(runner, e)
	o.Resting(runner, "kafka", nil)
	o.Resumed(runner, "kafka", 1)
	require.NoError(t, r.Consume(t.Context(), "kafka", "billing", consume.Message{}, func(context.Context) error { return nil }))
	var all metricdata.ResourceMetrics
	require.NoError(t, r.reader.Collect(t.Context(), &all))
	want := make(map[string]string)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			want[m.Name] = m.Unit
		}
	}
	text, err := os.ReadFile("../../docs/operate/telemetry.md")
	require.NoError(t, err)
	have := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z.]+)` \\| ([a-z{}]+) \\|").FindAllStringSubmatch(string(text), -1) {
		have[m[1]] = m[2]
	}
	require.Equal(t, want, have)
}
