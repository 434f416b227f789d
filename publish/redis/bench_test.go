package redis_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/publish"
)

// BenchmarkPublish sends batches of 500 events, and next to them a pipeline of 500 XADD by hand with the same fields:
//
//	OUTBOXGEN_TEST_BROKERS=1 go test -run '^$' -bench Publish -count 5 .
func BenchmarkPublish(b *testing.B) {
	server := newBroker(b)
	const batch = 500
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, 100_000)
	for _, keys := range []struct {
		name string
		of   func(n int) string
	}{
		{"distinct", func(n int) string { return fmt.Sprint(n) }},
		{"zipf", func(int) string { return fmt.Sprint(zipf.Uint64()) }},
		{"ten", func(n int) string { return fmt.Sprint(n % 10) }},
	} {
		b.Run("keys="+keys.name, func(b *testing.B) {
			p := server.publisher(b)
			events := make([]publish.Outgoing, batch)
			for i := range events {
				events[i] = event(keys.of(i), i)
			}
			for b.Loop() {
				for _, err := range p.Publish(b.Context(), events) {
					require.NoError(b, err)
				}
			}
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "events/s")
		})
	}
	b.Run("by hand", func(b *testing.B) {
		encode := publish.CloudEvents("", publish.Binary)
		for b.Loop() {
			pipe := server.client.Pipeline()
			for i := range batch {
				o := event(fmt.Sprint(i), i)
				m, err := encode(o)
				require.NoError(b, err)
				fields := []any{"content-type", m.ContentType, "data", m.Body}
				for name, value := range m.Attributes {
					fields = append(fields, "ce_"+name, value)
				}
				pipe.XAdd(b.Context(), &goredis.XAddArgs{Stream: o.Destination, NoMkStream: true, Values: fields})
			}
			_, err := pipe.Exec(b.Context())
			require.NoError(b, err)
		}
		b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "events/s")
	})
}
