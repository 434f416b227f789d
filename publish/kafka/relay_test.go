package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/publish/internal/relaytest"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

// TestRelayOfALog relays 20,000 events while replies are refused, lost, late and misplaced and the cluster is killed. No event
// is lost, the order per key is kept, and each effect happens once.
func TestRelayOfALog(t *testing.T) {
	t.Parallel()
	relaytest.Log(t, newRelay(t), 20_000)
}

func TestRelayOfAQueue(t *testing.T) {
	t.Parallel()
	relaytest.Queue(t, newRelay(t), 2_000)
}

// TestRelayOfALogInTransactions: the same with a transactional id, through aborted transactions and lost commits.
func TestRelayOfALogInTransactions(t *testing.T) {
	t.Parallel()
	pgtest.Slow(t)
	relaytest.Log(t, newRelay(t, isFenced), 5_000)
}

func newRelay(t *testing.T, change ...func(*kafka.Config)) relaytest.Broker {
	w := &wire{}
	c := newCluster(t, kfake.ListenFn(w.listen))
	p := c.publisher(t, append(change, func(cfg *kafka.Config) { cfg.Timeout = 2 * time.Second })...)
	answer := func(err *kerr.Error, count int) func() {
		return func() {
			h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err, Count: count})
			defer h.Remove()
			require.Eventually(t, func() bool { return h.Hits() > 0 }, patience, 10*time.Millisecond)
		}
	}
	tampered := func(how ...tamper) func() {
		return func() {
			before := w.count()
			w.next(how...)
			require.Eventually(t, func() bool { return w.count() > before }, patience, 10*time.Millisecond)
		}
	}
	return relaytest.Broker{
		Publisher: p, Destination: topic, Consume: c.consume(),
		Faults: []func(){
			answer(kerr.NotEnoughReplicas, 3),
			tampered(drop, drop, drop),
			answer(kerr.UnknownServerError, 2),
			tampered(late, late, foreign),
			func() { c.Close(); c.start() },
			answer(kerr.OutOfOrderSequenceNumber, 1),
		},
	}
}

// consume reads the topic, each partition in order, from behind the last records that were applied.
func (c *cluster) consume() func(ctx context.Context, apply func([]relaytest.Message) error) error {
	next := make(map[int32]kgo.Offset)
	for partition := range int32(6) {
		next[partition] = kgo.NewOffset().At(0)
	}
	addrs := c.addrs
	return func(ctx context.Context, apply func([]relaytest.Message) error) error {
		cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.DisableClientMetrics(), kgo.FetchMaxWait(100*time.Millisecond),
			kgo.MetadataMinAge(100*time.Millisecond), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: next}))
		if err != nil {
			return err
		}
		defer cl.Close()
		for {
			fetches := cl.PollRecords(ctx, 300) // errors are temporary: the loop tries again
			if ctx.Err() != nil {
				return ctx.Err()
			}
			var got []relaytest.Message
			read := make(map[int32]kgo.Offset)
			for _, r := range fetches.Records() {
				id, err := uuid.Parse(idOf(r))
				if err != nil {
					return err
				}
				got = append(got, relaytest.Message{ID: id, Payload: r.Value})
				read[r.Partition] = kgo.NewOffset().At(r.Offset + 1)
			}
			if err := apply(got); err != nil {
				return err
			}
			for partition, offset := range read {
				next[partition] = offset
			}
		}
	}
}
