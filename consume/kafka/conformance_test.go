package kafka_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/consumetest"
	"github.com/outboxgen/outboxgen/consume/kafka"
	"github.com/outboxgen/outboxgen/consume/receive"
)

// TestConformance: the receiver passes the suite of consumers.
func TestConformance(t *testing.T) {
	consumetest.Conformance(t, consumetest.Harness{
		Open: func(t testing.TB) consumetest.Broker {
			c := newCluster(t, 1)
			client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.DisableClientMetrics(), kgo.DefaultProduceTopic(topic))
			require.NoError(t, err)
			t.Cleanup(client.Close)
			return consumetest.Broker{
				Address: strings.Join(c.addrs, ","),
				Send: func(ctx context.Context, ms []consumetest.Message) error {
					var list []*kgo.Record
					for _, m := range ms {
						list = append(list, asRecord(m))
					}
					return client.ProduceSync(ctx, list...).FirstErr()
				},
				Pending: func(ctx context.Context) (int, error) { return uncommitted(ctx, kadm.NewClient(client)) },
				Rebalance: func(context.Context) error {
					c.rebalance()
					return nil
				},
			}
		},
		Run: func(ctx context.Context, address string, pool *pgxpool.Pool, consumer *consume.Consumer, cfg receive.Config) error {
			config := (&cluster{addrs: strings.Split(address, ",")}).config()
			config.Receive = cfg
			return kafka.Run(ctx, pool, consumer, config)
		},
	})
}

// asRecord is a message as publish/kafka sends it.
func asRecord(m consumetest.Message) *kgo.Record {
	r := &kgo.Record{Key: []byte(m.Key), Value: m.Body}
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: "content-type", Value: []byte(m.ContentType)})
	for _, name := range slices.Sorted(maps.Keys(m.Attributes)) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "ce_" + name, Value: []byte(m.Attributes[name])})
	}
	return r
}

// uncommitted is how many records of the topic the suite's group has not committed.
func uncommitted(ctx context.Context, admin *kadm.Client) (n int, err error) {
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	committed, err := admin.FetchOffsets(ctx, consumetest.Group)
	if err != nil {
		return 0, err
	}
	ends.Each(func(end kadm.ListedOffset) {
		n += int(end.Offset)
		if at, is := committed.Lookup(end.Topic, end.Partition); is && at.At > 0 {
			n -= int(at.At)
		}
	})
	return n, nil
}
