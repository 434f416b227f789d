package kafka_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/internal/testing/freeport"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(pgtest.Supervisor))
}

// cluster is a Kafka cluster of three brokers. It can be killed, and started again with the records that it had.
type cluster struct {
	t     testing.TB
	opts  []kfake.Opt
	addrs []string
	*kfake.Cluster
}

const topic = "sc.domain.user"

func newCluster(t testing.TB, opts ...kfake.Opt) *cluster {
	t.Helper()
	c := &cluster{t: t, opts: append([]kfake.Opt{
		kfake.NumBrokers(3), kfake.SeedTopics(6, topic), kfake.DataDir(t.TempDir()),
		kfake.BrokerConfigs(map[string]string{"message.max.bytes": "200000"}),
	}, opts...)}
	var ports []int
	for range 3 {
		port, err := freeport.Find()
		require.NoError(t, err)
		ports = append(ports, port)
	}
	c.opts = append(c.opts, kfake.Ports(ports...)) // which stay its own when it is started again
	c.start()
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *cluster) start() {
	c.t.Helper()
	for _, a := range c.addrs { // where it was before
		require.NoError(c.t, freeport.Reclaim(a))
	}
	started, err := kfake.NewCluster(c.opts...)
	require.NoError(c.t, err)
	c.Cluster, c.addrs = started, started.ListenAddrs()
}

// patience is how long a test waits for something that must happen. It elapses only if something is broken.
const patience = 2 * time.Minute

// publisher returns a publisher for the cluster. Its Timeout is as long as a test waits.
func (c *cluster) publisher(t testing.TB, change ...func(*kafka.Config)) *kafka.Publisher {
	t.Helper()
	cfg := kafka.Config{Brokers: c.addrs, Timeout: patience, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&cfg)
	}
	p, err := kafka.New(cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// received returns all records of a topic, in order within each partition, also those of aborted transactions.
func (c *cluster) received(topic string) []*kgo.Record {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.ConsumeTopics(topic), kgo.DisableClientMetrics(), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	require.NoError(c.t, err)
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	require.NoError(c.t, err)
	missing := int64(0)
	ends.Each(func(o kadm.ListedOffset) { missing += o.Offset })
	var records []*kgo.Record
	for missing > 0 {
		fetches := cl.PollFetches(ctx)
		require.NoError(c.t, ctx.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if missing--; !r.Attrs.IsControl() { // the end of a transaction
				records = append(records, r)
			}
		})
	}
	return records
}

// committed reads records of a topic until they are enough, without those of aborted transactions.
func (c *cluster) committed(topic string, enough func([]*kgo.Record) bool) (records []*kgo.Record) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableClientMetrics(), kgo.FetchMaxWait(100*time.Millisecond))
	require.NoError(c.t, err)
	defer cl.Close()
	for !enough(records) {
		fetches := cl.PollFetches(ctx)
		require.NoError(c.t, ctx.Err())
		records = append(records, fetches.Records()...)
	}
	return records
}

// event returns an event with a key.
func event(key string, n int) publish.Outgoing {
	return publish.Outgoing{
		Event: outbox.Event{
			ID: uuid.Must(uuid.NewV7()), Namespace: "users", Topic: "user_renamed", Version: 1, PartitionKey: key,
			Attempt: 1, MaxAttempts: 5, CreatedAt: time.Date(2026, 11, 21, 13, 14, 15, 0, time.UTC),
		},
		Payload: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)), Destination: topic, Key: key,
	}
}

// large returns an event that the cluster refuses: it does not compress below the limit.
func large(o publish.Outgoing) publish.Outgoing {
	var b strings.Builder
	for b.Len() < 400_000 {
		b.WriteString(uuid.NewString())
	}
	o.Payload = json.RawMessage(`"` + b.String() + `"`)
	return o
}

func idOf(r *kgo.Record) string { return header(r, "ce_id") }

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// settle publishes until all events are there.
func settle(t testing.TB, p *kafka.Publisher, events []publish.Outgoing) {
	t.Helper()
	require.Eventually(t, func() bool {
		var pending []publish.Outgoing
		for i, err := range p.Publish(t.Context(), events) {
			if err != nil {
				pending = append(pending, events[i])
			}
		}
		events = pending
		return len(events) == 0
	}, patience, 20*time.Millisecond)
}
