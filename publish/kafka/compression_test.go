package kafka_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

// TestCompression: batches are not compressed, because not every client reads every codec, unless the options say so.
func TestCompression(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options []kgo.Opt
		want    uint8
	}{
		"default": {nil, 0},
		"gzip":    {[]kgo.Opt{kgo.ProducerBatchCompression(kgo.GzipCompression())}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cl := newCluster(t)
			p := cl.publisher(t, func(cfg *kafka.Config) { cfg.Options = c.options })
			events := []publish.Outgoing{event("a", 1), event("b", 2)}
			for i := range events {
				events[i].Payload = json.RawMessage(`"` + strings.Repeat("x", 4096) + `"`)
			}
			for _, err := range p.Publish(t.Context(), events) {
				require.NoError(t, err)
			}
			for _, r := range cl.received(topic) {
				require.Equal(t, c.want, r.Attrs.CompressionType())
			}
		})
	}
}
