package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/kafka"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/inbox"
)

const (
	consumeTopic      = "sc.domain.bench"
	consumePartitions = 4
	consumeGroup      = "bench"

	consumeRecord = "INSERT INTO outbox.processed_events (consumer_group, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING"
	consumeEffect = "INSERT INTO effects (event, name, amount) VALUES ($1, $2, $3)"
)

// paid is the payload of the records.
type paid struct {
	Name   string `json:"name"`
	Amount int64  `json:"amount"`
}

// consuming compares consumers of Kafka that record each event and write its effect in PostgreSQL, once.
func consuming(n int) workload {
	const byHand, partitions, ours, single = "by hand, record by record", "by hand, a goroutine per partition", "consume/kafka", "consume/kafka, BatchSize 1"
	return workload{
		name: "consume", title: "Consume from Kafka with an inbox", unit: "events/s",
		about: fmt.Sprintf("%d records in %d partitions of a Kafka in the same process, read by one consumer. By hand, each record is one transaction with "+
			"four statements: BEGIN, INSERT of the event's id, INSERT of the effect, COMMIT. Offsets are committed afterwards.", n, consumePartitions),
		contenders: []contender{
			{byHand, consumer(n, handWritten(false))},
			{partitions, consumer(n, handWritten(true))},
			{ours, consumer(n, generated(receive.Config{}))},
			{single, consumer(n, generated(receive.Config{BatchSize: 1}))},
		},
		targets: []target{{of: ours, to: byHand, atLeast: 0.5}, {of: ours, to: partitions, atLeast: 0.5}, {of: single, to: partitions, atLeast: 0.5}},
	}
}

// consumer measures read, which consumes until ctx ends and calls done after each effect.
func consumer(n int, read func(ctx context.Context, db *database, brokers []string, done func(int)) error) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		if _, err := db.pool.Exec(ctx, "CREATE TABLE effects (event uuid NOT NULL, name text NOT NULL, amount bigint NOT NULL)"); err != nil {
			return 0, err
		}
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(consumePartitions, consumeTopic))
		if err != nil {
			return 0, err
		}
		defer cluster.Close()
		if err := fill(ctx, cluster.ListenAddrs(), n); err != nil {
			return 0, err
		}
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var count atomic.Int64
		var first, last atomic.Int64 // times; joining the group is not measured
		err = read(ctx, db, cluster.ListenAddrs(), func(k int) {
			now := time.Now().UnixNano()
			first.CompareAndSwap(0, now)
			if count.Add(int64(k)) >= int64(n) {
				last.Store(now)
				stop()
			}
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			return 0, err
		}
		took := time.Duration(last.Load() - first.Load())
		ctx = context.WithoutCancel(ctx)
		return float64(n) / took.Seconds(), db.count(ctx, n, "effects", "SELECT count(DISTINCT e.event) FROM effects AS e JOIN outbox.processed_events AS p ON p.event_id = e.event")
	}
}

// fill writes the records, 100 keys in turn.
func fill(ctx context.Context, brokers []string, n int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(consumeTopic), kgo.DisableClientMetrics())
	if err != nil {
		return err
	}
	defer client.Close()
	records := make([]*kgo.Record, n)
	for i := range records {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		key := fmt.Sprint("key ", i%100)
		body, err := json.Marshal(paid{key, int64(i)})
		if err != nil {
			return err
		}
		header := func(name, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: name, Value: []byte(value)} }
		records[i] = &kgo.Record{Key: []byte(key), Value: body, Headers: []kgo.RecordHeader{
			header("content-type", "application/json"), header("ce_id", id.String()), header("ce_source", "/bench"),
			header("ce_specversion", "1.0"), header("ce_type", "bench.paid"), header("ce_dataversion", "1"),
		}}
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

// handWritten is the loop that a good service writes by hand.
func handWritten(concurrently bool) func(context.Context, *database, []string, func(int)) error {
	return func(ctx context.Context, db *database, brokers []string, done func(int)) error {
		client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumerGroup(consumeGroup), kgo.ConsumeTopics(consumeTopic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.DisableClientMetrics())
		if err != nil {
			return err
		}
		defer client.CloseAllowingRebalance()
		one := func(r *kgo.Record) error {
			var id uuid.UUID
			for _, h := range r.Headers {
				if h.Key == "ce_id" {
					var err error
					if id, err = uuid.ParseBytes(h.Value); err != nil {
						return err
					}
				}
			}
			var p paid
			if err := json.Unmarshal(r.Value, &p); err != nil {
				return err
			}
			err := pgx.BeginFunc(context.WithoutCancel(ctx), db.pool, func(tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, consumeRecord, consumeGroup, id)
				if err != nil || tag.RowsAffected() == 0 {
					return err
				}
				_, err = tx.Exec(ctx, consumeEffect, id, p.Name, p.Amount)
				return err
			})
			if err == nil {
				done(1)
			}
			return err
		}
		for ctx.Err() == nil {
			fetches := client.PollRecords(ctx, 2000)
			var mu sync.Mutex
			var failed error
			var running sync.WaitGroup
			fetches.EachPartition(func(p kgo.FetchTopicPartition) {
				work := func() {
					for _, r := range p.Records {
						if err := one(r); err != nil {
							mu.Lock()
							defer mu.Unlock()
							failed = errors.Join(failed, err)
							return
						}
					}
				}
				if concurrently {
					running.Go(work)
				} else {
					work()
				}
			})
			running.Wait()
			if failed != nil {
				return failed
			}
			if err := client.CommitRecords(context.WithoutCancel(ctx), fetches.Records()...); err != nil {
				return err
			}
			client.AllowRebalance()
		}
		return nil
	}
}

// writer is a consumer as a user writes it.
type writer struct{}

func (writer) ConsumePaid(ctx context.Context, tx pgx.Tx, d consume.Delivery[paid]) error {
	_, err := tx.Exec(ctx, consumeEffect, d.ID, d.Payload.Name, d.Payload.Amount)
	return err
}

// generated consumes with consume/kafka, and a consumer such as outboxgen generates.
func generated(cfg receive.Config) func(context.Context, *database, []string, func(int)) error {
	topic := consume.NewTopic[paid](consume.TopicSpec{Namespace: "bench", Name: "paid"})
	return func(ctx context.Context, db *database, brokers []string, done func(int)) error {
		ib, err := inbox.New(inbox.Config{Group: consumeGroup})
		if err != nil {
			return err
		}
		c, err := consume.New(ib, consume.Handle(topic, writer{}, writer.ConsumePaid))
		if err != nil {
			return err
		}
		cfg.Observer = &receive.Observer{Settled: func(receive.Settled) { done(1) }}
		cfg.Logger = slog.New(slog.DiscardHandler)
		return kafka.Run(ctx, db.pool, c, kafka.Config{Brokers: brokers, Topics: []string{consumeTopic}, Receive: cfg})
	}
}
