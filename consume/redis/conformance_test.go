package redis_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/consumetest"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/consume/redis"
)

// TestConformance: the receiver passes the suite of consumers.
func TestConformance(t *testing.T) {
	consumetest.Conformance(t, consumetest.Harness{
		Open: func(t testing.TB) consumetest.Broker {
			b := newBroker(t)
			return consumetest.Broker{
				Address: b.Addr(), Send: b.send, Pending: b.unacknowledged,
				Rebalance: func(ctx context.Context) error {
					return b.client.ClientKillByFilter(ctx, "SKIPME", "yes", "TYPE", "normal").Err()
				},
			}
		},
		Run: func(ctx context.Context, address string, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
			return redis.Run(ctx, pool, c, config(address, func(r *redis.Config) { r.Receive = cfg }))
		},
	})
}

// send adds messages as publish/redis does.
func (b *broker) send(ctx context.Context, ms []consumetest.Message) error {
	pipe := b.client.Pipeline()
	for _, m := range ms {
		fields := []any{"content-type", m.ContentType, "data", m.Body}
		for name, value := range m.Attributes {
			fields = append(fields, "ce_"+name, value)
		}
		pipe.XAdd(ctx, &goredis.XAddArgs{Stream: users, NoMkStream: true, Values: fields})
	}
	_, err := pipe.Exec(ctx)
	return err
}

// unacknowledged is how many entries of the stream the suite's consumer group has not acknowledged.
func (b *broker) unacknowledged(ctx context.Context) (int, error) {
	groups, err := b.client.XInfoGroups(ctx, users).Result()
	if err != nil {
		return 0, err
	}
	for _, g := range groups {
		if g.Name == consumetest.Group {
			return int(g.Pending + g.Lag), nil
		}
	}
	n, err := b.client.XLen(ctx, users).Result()
	return int(n), err
}
