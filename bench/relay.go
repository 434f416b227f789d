package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
)

const (
	relayTopic      = "bench.orders"
	relayPartitions = 8
	relayKeys       = 1000 // each event has one of so many partition keys
)

// relay measures how fast a log of n events reaches Kafka, next to a producer that has all records in memory.
func relay(n int) workload {
	return workload{
		name: "relay", title: fmt.Sprintf("log of %d to Kafka", n), unit: "events/s",
		about: fmt.Sprintf("From the start of the listener to the end of a graceful stop. Kafka is kfake with 3 brokers and %d partitions, in this process "+
			"and in memory, and acknowledges by all replicas. Each event has one of %d keys, a payload of about two hundred bytes and the headers of CloudEvents. "+
			"franz-go: one client as it comes, idempotent, which has the same records in memory, does not wait for one before it sends the next, and reads nothing. "+
			"Publisher: calls of 1,000 events, one after the other, without a database. By hand: a loop that selects 1,000 rows of the log behind its position, "+
			"sends them with franz-go, waits for them and updates the position, while it selects the next; it has no lease, and would pass over an event "+
			"that commits late. Clients compress as franz-go does by itself; the publisher does not, so there is a loop that does not either. Transactional id: the listener with batches of 1,000, in transactions.", relayPartitions, relayKeys),
		contenders: []contender{
			{"franz-go", relayDirect(n, 0)},
			{"franz-go, 1,000 at a time", relayDirect(n, 1000)},
			{"Publisher", relayPublisher(n)},
			{"by hand", relayByHand(n)},
			{"by hand, not compressed", relayByHand(n, kgo.ProducerBatchCompression(kgo.NoCompression()))},
			{"listener, batches of 1,000", relayListener(n, listener.Config{BatchSize: 1000}, "")},
			{"listener, transactional id", relayListener(n, listener.Config{BatchSize: 1000}, "relay")},
			{"listener, as it comes", relayListener(n, listener.Config{}, "")},
		},
		targets: []target{
			{of: "listener, batches of 1,000", to: "franz-go", atLeast: 0.6},
			{of: "listener, batches of 1,000", to: "franz-go, 1,000 at a time", atLeast: 0.6},
			{of: "listener, batches of 1,000", to: "by hand", atLeast: 0.8},
			{of: "listener, as it comes", to: "by hand", atLeast: 0.95},
			{of: "listener, as it comes", to: "by hand, not compressed", atLeast: 0.95},
			{of: "Publisher", to: "franz-go, 1,000 at a time", atLeast: 0.8},
		},
	}
}

var relayKey = func() (keys [relayKeys]uuid.UUID) {
	for i := range keys {
		keys[i] = uuid.New()
	}
	return keys
}()

func relayOrder(seq int) events.OrderMoved {
	p := events.OrderMoved(order(seq))
	p.OrderID = relayKey[seq%relayKeys]
	return p
}

// relayTo gives produce a cluster for one run, and returns the rate of n records. produce returns how long it took.
func relayTo(n int, produce func(c *kfake.Cluster) (time.Duration, error)) (float64, error) {
	c, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(relayPartitions, relayTopic))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	runtime.GC() // not of what the run before has left
	took, err := produce(c)
	if err != nil {
		return 0, err
	}
	var got int64
	for _, p := range c.PartitionInfos(relayTopic) {
		got += p.HighWatermark
	}
	if got < int64(n) {
		return 0, fmt.Errorf("%d offsets, want %d or more", got, n)
	}
	return float64(n) / took.Seconds(), nil
}

// relayOutgoing returns the events that a listener would publish.
func relayOutgoing(n int) ([]publish.Outgoing, error) {
	out := make([]publish.Outgoing, n)
	now := time.Now()
	for i := range out {
		p := relayOrder(i)
		body, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		key := p.OrderID.String()
		out[i] = publish.Outgoing{
			Event: outbox.Event{
				ID: uuid.Must(uuid.NewV7()), Namespace: "bench_log", Topic: "order_moved", Version: 1, PartitionKey: key, Attempt: 1, MaxAttempts: 25, CreatedAt: now,
			},
			Payload: body, Destination: relayTopic, Key: key,
		}
	}
	return out, nil
}

// relayRecords returns the records of n events, as the publisher makes them.
func relayRecords(n int) ([]*kgo.Record, error) {
	out, err := relayOutgoing(n)
	if err != nil {
		return nil, err
	}
	records := make([]*kgo.Record, n)
	encoder := publish.CloudEvents("", publish.Binary)
	for i, o := range out {
		m, err := encoder.Encode(o)
		if err != nil {
			return nil, err
		}
		r := &kgo.Record{Topic: relayTopic, Key: []byte(o.Key), Value: m.Body, Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte(m.ContentType)}}}
		for name, value := range m.Attributes {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "ce_" + name, Value: []byte(value)})
		}
		records[i] = r
	}
	return records, nil
}

// relayDirect produces records that are in memory. It waits for the first size of them before it sends the next; 0 means
// that it waits for all of them at the end.
func relayDirect(n, size int) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, _ *database) (float64, error) {
		records, err := relayRecords(n)
		if err != nil {
			return 0, err
		}
		return relayTo(n, func(c *kfake.Cluster) (time.Duration, error) {
			started := time.Now()
			client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.DisableClientMetrics())
			if err != nil {
				return 0, err
			}
			defer client.Close()
			if size > 0 {
				for part := range slices.Chunk(records, size) {
					if err := client.ProduceSync(ctx, part...).FirstErr(); err != nil {
						return 0, err
					}
				}
				return time.Since(started), nil
			}
			var (
				once   sync.Once
				failed error
			)
			for _, r := range records {
				client.Produce(ctx, r, func(_ *kgo.Record, err error) {
					if err != nil {
						once.Do(func() { failed = err })
					}
				})
			}
			if err := client.Flush(ctx); err != nil {
				return 0, err
			}
			return time.Since(started), failed
		})
	}
}

func relayPublisher(n int) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, _ *database) (float64, error) {
		out, err := relayOutgoing(n)
		if err != nil {
			return 0, err
		}
		return relayTo(n, func(c *kfake.Cluster) (time.Duration, error) {
			p, err := kafka.New(kafka.Config{Brokers: c.ListenAddrs(), Logger: quiet})
			if err != nil {
				return 0, err
			}
			defer p.Close()
			started := time.Now()
			for part := range slices.Chunk(out, 1000) {
				for _, err := range p.Publish(ctx, part) {
					if err != nil {
						return 0, err
					}
				}
			}
			return time.Since(started), nil
		})
	}
}

// relayByHand relays the log with a loop of the simplest kind.
func relayByHand(n int, opts ...kgo.Opt) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		if err := fillForHand(ctx, db, n); err != nil {
			return 0, err
		}
		return relayTo(n, func(c *kfake.Cluster) (time.Duration, error) {
			started := time.Now()
			client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(c.ListenAddrs()...), kgo.DisableClientMetrics())...)
			if err != nil {
				return 0, err
			}
			defer client.Close()
			err = relayLoop(ctx, db, handRecord, func(ctx context.Context, part []*kgo.Record) error {
				return client.ProduceSync(ctx, part...).FirstErr()
			})
			return time.Since(started), err
		})
	}
}

// handRecord makes the record of an event, the same as the publisher does.
func handRecord(e *handEvent) *kgo.Record {
	r := &kgo.Record{Topic: relayTopic, Value: e.payload, Headers: make([]kgo.RecordHeader, 0, 9)}
	r.Headers = append(r.Headers,
		kgo.RecordHeader{Key: "content-type", Value: []byte("application/json")},
		kgo.RecordHeader{Key: "ce_dataversion", Value: strconv.AppendInt(nil, int64(e.version), 10)},
		kgo.RecordHeader{Key: "ce_specversion", Value: []byte("1.0")},
		kgo.RecordHeader{Key: "ce_id", Value: []byte(e.id.String())},
		kgo.RecordHeader{Key: "ce_source", Value: []byte("/bench_log")},
		kgo.RecordHeader{Key: "ce_type", Value: []byte("bench_log." + e.topic)},
		kgo.RecordHeader{Key: "ce_time", Value: e.created.AppendFormat(nil, time.RFC3339Nano)})
	if e.key != "" {
		r.Key = []byte(e.key)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "ce_partitionkey", Value: r.Key}, kgo.RecordHeader{Key: "ce_subject", Value: r.Key})
	}
	return r
}

// countedPublisher tells t of the events that were published.
type countedPublisher struct {
	publish.Publisher
	t *tally
	n atomic.Int64
}

func (c *countedPublisher) Publish(ctx context.Context, events []publish.Outgoing) []error {
	errs := c.Publisher.Publish(ctx, events)
	for _, err := range errs {
		if err == nil {
			c.t.add(c.n.Add(1) - 1)
		}
	}
	return errs
}

func relayListener(n int, cfg listener.Config, transactionalID string) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		if err := fillQueue(ctx, db, n, relayOrder, events.EnqueueOrderMovedMany); err != nil {
			return 0, err
		}
		return relayTo(n, func(c *kfake.Cluster) (time.Duration, error) {
			p, err := kafka.New(kafka.Config{Brokers: c.ListenAddrs(), Logger: quiet, TransactionalID: transactionalID})
			if err != nil {
				return 0, err
			}
			defer p.Close()
			return relayListening(ctx, db, n, cfg, p, relayTopic)
		})
	}
}
