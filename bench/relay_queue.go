package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/outboxgen/outboxgen/bench/events"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/kafka"
	"github.com/outboxgen/outboxgen/queue"
)

// relayQueued measures how fast n events of a queue topic reach Kafka.
func relayQueued(n int) workload {
	return workload{
		name: "relay-queue", title: fmt.Sprintf("queue topic of %d to Kafka", n), unit: "events/s",
		about: "From the start of the dispatcher to the end of a graceful stop, with the Kafka of the relay of a log. By hand: two workers claim 1,000 events with " +
			"a lease, send them with franz-go, wait for them and ack them, with the statements of the drain. One of them does not compress, as the publisher does not.",
		contenders: []contender{
			{"by hand", queuedByHand(n)},
			{"by hand, not compressed", queuedByHand(n, kgo.ProducerBatchCompression(kgo.NoCompression()))},
			{"dispatcher, as it comes", queuedDispatcher(n, queue.Config{})},
			{"dispatcher, batches of 1,000", queuedDispatcher(n, queue.Config{BatchSize: 1000})},
		},
		targets: []target{
			{of: "dispatcher, as it comes", to: "by hand", atLeast: 0.95},
			{of: "dispatcher, as it comes", to: "by hand, not compressed", atLeast: 0.95},
		},
	}
}

func queuedDispatcher(n int, cfg queue.Config) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (float64, error) {
		if err := fillPaid(ctx, db, n); err != nil {
			return 0, err
		}
		rate, err := relayTo(n, func(c *kfake.Cluster) (time.Duration, error) {
			p, err := kafka.New(kafka.Config{Brokers: c.ListenAddrs(), Logger: quiet})
			if err != nil {
				return 0, err
			}
			defer p.Close()
			cfg, t := cfg, newTally(n)
			cfg.PruneInterval, cfg.Logger = -1, quiet
			cfg.Publishers = map[string]publish.Publisher{"kafka": &countedPublisher{Publisher: p, t: t}}
			d, err := queue.NewDispatcher(db.pool, cfg,
				queue.Publish(events.OrderPaidTopic, publish.Publication{Broker: "kafka", Destination: relayTopic}))
			if err != nil {
				return 0, err
			}
			return runDispatcher(ctx, t, d.Run)
		})
		if err != nil {
			return 0, err
		}
		return rate, db.count(ctx, n, "delivered", delivered)
	}
}

func queuedByHand(n int, opts ...kgo.Opt) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, db *database) (rate float64, err error) {
		if err := fillPaid(ctx, db, n); err != nil {
			return 0, err
		}
		rate, err = relayTo(n, func(c *kfake.Cluster) (time.Duration, error) {
			started := time.Now()
			client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(c.ListenAddrs()...), kgo.DisableClientMetrics())...)
			if err != nil {
				return 0, err
			}
			defer client.Close()
			workers, ctx := errgroup.WithContext(ctx)
			for range 2 {
				workers.Go(func() error {
					for worker := uuid.New(); ; {
						if found, err := relayPaid(ctx, db, worker, client); found == 0 || err != nil {
							return err
						}
					}
				})
			}
			err = workers.Wait()
			return time.Since(started), err
		})
		if err != nil {
			return 0, err
		}
		return rate, db.count(ctx, n, "delivered", delivered)
	}
}

// relayPaid claims up to 1,000 events, sends them and acks them.
func relayPaid(ctx context.Context, db *database, worker uuid.UUID, client *kgo.Client) (int, error) {
	rows, err := db.pool.Query(ctx, claimByHand, 1000, worker, "bench", laneOf(events.OrderPaidTopic.Untyped()))
	if err != nil {
		return 0, err
	}
	var (
		id      uuid.UUID
		topic   string
		payload json.RawMessage
		claimNo int32
		ids     []uuid.UUID
		records []*kgo.Record
	)
	for rows.Next() {
		if err := rows.Scan(&id, &topic, &payload, &claimNo); err != nil {
			rows.Close()
			return 0, err
		}
		ids = append(ids, id)
		records = append(records, handRecord(&handEvent{id: id, topic: topic, version: 1, payload: payload, created: time.Now()}))
	}
	if err := rows.Err(); err != nil || len(ids) == 0 {
		return 0, err
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return 0, err
	}
	_, err = db.pool.Exec(ctx, ackByHand, ids, worker)
	return len(ids), err
}
