package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/examples/minichat/events/chatevents"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/migrate"
)

const (
	kafkaTopic      = "minichat.turns"
	kafkaPartitions = 4
	pollTimeout     = time.Second
)

// startKafka starts a Kafka broker in this process, with the topic.
func startKafka() (*kfake.Cluster, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(kafkaPartitions, kafkaTopic))
	if err != nil {
		return nil, fmt.Errorf("start Kafka: %w", err)
	}
	return cluster, nil
}

// analytics is another service. It has its own database, and knows the turns only from Kafka.
type analytics struct {
	pool     *pgxpool.Pool
	brokers  []string
	consumer *consume.Consumer
	messages atomic.Int64 // that it got, including repeats
	failNow  atomic.Bool  // the next batch ends as if the process died before it committed its offsets
	failed   atomic.Bool
}

// openAnalytics creates the database of the service at url.
func openAnalytics(ctx context.Context, admin *pgxpool.Pool, url string, brokers []string) (a *analytics, err error) {
	if _, err := admin.Exec(ctx, "CREATE DATABASE analytics"); err != nil {
		return nil, fmt.Errorf("create database: %w", err)
	}
	a = &analytics{brokers: brokers}
	if a.pool, err = pgxpool.New(ctx, url); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	defer func() {
		if err != nil {
			a.pool.Close()
		}
	}()
	if _, err := migrate.Up(ctx, a.pool, "inbox"); err != nil {
		return nil, err
	}
	// The event is not unique in this table: the inbox has to keep repeats away.
	_, err = a.pool.Exec(ctx, `
		CREATE TABLE turns (
		    no        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
		    tenant_id uuid   NOT NULL,
		    event_id  uuid   NOT NULL
		)`)
	if err != nil {
		return nil, fmt.Errorf("create table: %w", err)
	}
	ib, err := inbox.New(inbox.Config{Schema: "inbox", Group: "analytics"})
	if err != nil {
		return nil, err
	}
	a.consumer, err = chatevents.NewMiniChatConsumer(ib, a)
	return a, err
}

// ConsumeTurnStarted adds the turn to the table.
func (a *analytics) ConsumeTurnStarted(ctx context.Context, tx pgx.Tx, e consume.Delivery[chatevents.TurnStarted]) error {
	_, err := tx.Exec(ctx, "INSERT INTO turns (tenant_id, event_id) VALUES ($1, $2)", e.Payload.TenantID, e.ID)
	return err
}

// errDied ends a consumer as if its process had died.
var errDied = errors.New("the consumer died")

// run consumes until ctx ends. When a consumer dies, the next one gets again what had no offset.
func (a *analytics) run(ctx context.Context) error {
	for {
		err := a.consume(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, errDied) {
			return err
		}
	}
}

func (a *analytics) consume(ctx context.Context) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(a.brokers...), kgo.ConsumerGroup("analytics"), kgo.ConsumeTopics(kafkaTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.DisableClientMetrics(),
	)
	if err != nil {
		return fmt.Errorf("configure Kafka client: %w", err)
	}
	defer client.CloseAllowingRebalance()
	for ctx.Err() == nil {
		if err := a.batch(ctx, client); err != nil {
			return err
		}
	}
	return nil
}

// batch applies the messages of a poll, each in its own transaction, and commits their offsets afterwards.
func (a *analytics) batch(ctx context.Context, client *kgo.Client) error {
	polling, cancel := context.WithTimeout(ctx, pollTimeout)
	fetches := client.PollRecords(polling, 100)
	cancel()
	defer client.AllowRebalance()
	if err := fetches.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	records := fetches.Records()
	for _, r := range records {
		a.messages.Add(1)
		if _, err := a.consumer.Consume(ctx, a.pool, consume.FromKafka(r.Headers, r.Value)); err != nil {
			return fmt.Errorf("consume message %d of partition %d: %w", r.Offset, r.Partition, err)
		}
	}
	if len(records) > 0 && a.failNow.CompareAndSwap(true, false) {
		a.failed.Store(true)
		return errDied
	}
	return client.CommitRecords(ctx, records...)
}

// turns returns the events of each tenant in the order in which they were applied.
func (a *analytics) turns(ctx context.Context) (map[uuid.UUID][]uuid.UUID, error) {
	return byTenant(ctx, a.pool, "SELECT tenant_id, event_id FROM turns ORDER BY no")
}

// byTenant collects the rows (tenant, event) of a query.
func byTenant(ctx context.Context, pool *pgxpool.Pool, query string) (map[uuid.UUID][]uuid.UUID, error) {
	found := make(map[uuid.UUID][]uuid.UUID)
	rows, _ := pool.Query(ctx, query)
	var tenant, event uuid.UUID
	_, err := pgx.ForEachRow(rows, []any{&tenant, &event}, func() error {
		found[tenant] = append(found[tenant], event)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read turns by tenant: %w", err)
	}
	return found, nil
}
