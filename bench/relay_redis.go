package main

import (
	"context"
	"errors"

	goredis "github.com/redis/go-redis/v9"

	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/redis"
)

func relayRedis(n int) workload {
	return relayBeside("relay-redis", "Redis", "Redis is a server of its own with an append-only file that is not flushed. The loop sends a pipeline of 1,000 XADD.",
		n, startRedis)
}

const relayStream = "bench:orders"

func startRedis(ctx context.Context) (*relayBroker, error) {
	s, err := brokertest.RunRedis()
	if err != nil {
		return nil, err
	}
	client := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
	stop := func() error { return errors.Join(client.Close(), s.Stop()) }
	if err := client.XGroupCreateMkStream(ctx, relayStream, "group", "0").Err(); err != nil {
		return nil, errors.Join(err, stop())
	}
	return &relayBroker{
		destination: relayStream,
		ours: func() (publish.Publisher, func(), error) {
			p, err := redis.New(redis.Config{URL: "redis://" + s.Addr()})
			if err != nil {
				return nil, nil, err
			}
			return p, p.Close, nil
		},
		hand: func(ctx context.Context, db *database) error {
			client := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
			defer func() { _ = client.Close() }()
			return relayLoop(ctx, db, redisEntry, func(ctx context.Context, part []*goredis.XAddArgs) error {
				_, err := client.Pipelined(ctx, func(p goredis.Pipeliner) error {
					for _, e := range part {
						p.XAdd(ctx, e)
					}
					return nil
				})
				return err
			})
		},
		arrived: func(ctx context.Context) (int, error) {
			got, err := client.XLen(ctx, relayStream).Result()
			return int(got), err
		},
		stop: stop,
	}, nil
}

func redisEntry(e *handEvent) *goredis.XAddArgs {
	values := []any{"content-type", "application/json"}
	handHeaders(e, func(name, value string) { values = append(values, "ce_"+name, value) })
	return &goredis.XAddArgs{Stream: relayStream, NoMkStream: true, Values: append(values, "data", e.payload)}
}
