package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/examples/users/cards"
)

const (
	partitions   = 6
	greetTimeout = 10 * time.Second
	lookInterval = 50 * time.Millisecond
)

// connect returns the addresses of a cluster that has the topic: the cluster in list, or one in this process if list is
// empty.
func connect(ctx context.Context, list string) (brokers []string, stop func(), err error) {
	brokers, stop = split(list), func() {}
	if len(brokers) == 0 {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			return nil, nil, fmt.Errorf("start Kafka: %w", err)
		}
		brokers, stop = cluster.ListenAddrs(), cluster.Close
	}
	if err := createTopic(ctx, brokers); err != nil {
		stop()
		return nil, nil, err
	}
	return brokers, stop, nil
}

func createTopic(ctx context.Context, brokers []string) error {
	admin, err := administrate(brokers)
	if err != nil {
		return err
	}
	defer admin.Close()
	ctx, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	_, err = admin.CreateTopic(ctx, partitions, -1, nil, cards.Topic)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s in Kafka at %v: %w", cards.Topic, brokers, err)
	}
	return nil
}

// caughtUp waits until a consumer group has committed all messages of the topic.
func caughtUp(ctx context.Context, brokers []string, group string) error {
	admin, err := administrate(brokers)
	if err != nil {
		return err
	}
	defer admin.Close()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		lag, err := lag(ctx, admin, group)
		if err != nil {
			return fmt.Errorf("read lag of %s: %w", group, err)
		}
		if lag == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// lag returns how many messages a group has not committed yet.
func lag(ctx context.Context, admin *kadm.Client, group string) (lag int64, err error) {
	starts, err := admin.ListStartOffsets(ctx, cards.Topic)
	if err != nil {
		return 0, err
	}
	ends, err := admin.ListEndOffsets(ctx, cards.Topic)
	if err != nil {
		return 0, err
	}
	offsets, err := admin.FetchOffsets(ctx, group)
	err = errors.Join(starts.Error(), ends.Error(), err, offsets.Error())
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // a group that no process has joined yet
		return 0, err
	}
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(end.Topic, end.Partition)
		committed, found := offsets.Lookup(end.Topic, end.Partition)
		if !found {
			committed.At = 0
		}
		lag += end.Offset - max(start.Offset, committed.At)
	})
	return lag, nil
}

func administrate(brokers []string) (*kadm.Client, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DisableClientMetrics())
	if err != nil {
		return nil, fmt.Errorf("configure Kafka client: %w", err)
	}
	return kadm.NewClient(client), nil
}
