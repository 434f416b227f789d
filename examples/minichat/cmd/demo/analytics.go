package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/kafka"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/examples/minichat/events/chatevents"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/migrate"
)

const (
	kafkaTopic      = "minichat.turns"
	kafkaPartitions = 4
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
	cluster  *kfake.Cluster
	receiver *kafka.Receiver
	messages atomic.Int64 // that it got, including repeats
	dying    atomic.Bool
	dead     chan *kfake.FaultHandle // of the commits that Kafka refuses to a receiver that dies
	refused  *kfake.FaultHandle
	died     bool
}

// openAnalytics creates the database of the service at url.
func openAnalytics(ctx context.Context, admin *pgxpool.Pool, url string, cluster *kfake.Cluster) (a *analytics, err error) {
	if _, err := admin.Exec(ctx, "CREATE DATABASE analytics"); err != nil {
		return nil, fmt.Errorf("create database: %w", err)
	}
	a = &analytics{cluster: cluster, dead: make(chan *kfake.FaultHandle, 1)}
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
	consumer, err := chatevents.NewMiniChatConsumer(ib, a)
	if err != nil {
		return nil, err
	}
	a.receiver, err = kafka.New(a.pool, consumer, kafka.Config{
		Brokers: cluster.ListenAddrs(), Topics: []string{kafkaTopic},
		Receive: receive.Config{Logger: slog.New(slog.DiscardHandler), Observer: &receive.Observer{Settled: a.settled}},
	})
	return a, err
}

// settled is told of each message that was applied or was a repeat.
func (a *analytics) settled(receive.Settled) {
	a.messages.Add(1)
	if a.dying.CompareAndSwap(true, false) {
		a.dead <- a.refused
	}
}

// ConsumeTurnStarted adds the turn to the table.
func (a *analytics) ConsumeTurnStarted(ctx context.Context, tx pgx.Tx, e consume.Delivery[chatevents.TurnStarted]) error {
	_, err := tx.Exec(ctx, "INSERT INTO turns (tenant_id, event_id) VALUES ($1, $2)", e.Payload.TenantID, e.ID)
	return err
}

// die ends the receiver as if its process had been killed after its next message: the effect is committed, and the offset is
// not. The next receiver gets the message again.
func (a *analytics) die() {
	a.refused = a.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Count: -1})
	a.dying.Store(true)
}

// run consumes until ctx ends. When a receiver has died, the next one continues.
func (a *analytics) run(ctx context.Context) error {
	for ctx.Err() == nil {
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- a.receiver.Run(running) }()
		var err error
		select {
		case refused := <-a.dead:
			stop()
			err = <-ended
			refused.Remove()
			a.died = true
		case err = <-ended:
		}
		stop()
		if err != nil {
			return fmt.Errorf("the other service: %w", err)
		}
	}
	return nil
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
