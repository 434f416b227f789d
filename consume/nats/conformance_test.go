package nats_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/consumetest"
	"github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/consume/receive"
)

// TestConformance: the receiver passes the suite of consumers.
func TestConformance(t *testing.T) {
	consumetest.Conformance(t, consumetest.Harness{
		Open: func(t testing.TB) consumetest.Broker {
			b := newBroker(t)
			return consumetest.Broker{
				Address: b.url("", ""),
				Send: func(ctx context.Context, ms []consumetest.Message) error {
					for _, m := range ms {
						if _, err := b.js.PublishMsg(ctx, asMsg(m)); err != nil {
							return err
						}
					}
					return nil
				},
				Pending: b.unacknowledged,
				Rebalance: func(context.Context) error {
					b.kill()
					b.start()
					return nil
				},
			}
		},
		Run: func(ctx context.Context, url string, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
			config := (&broker{}).config(func(config *nats.Config) {
				config.URL, config.AckWait, config.Receive = url, 2*time.Second, cfg
			})
			return nats.Run(ctx, pool, c, config)
		},
	})
}

// asMsg is a message as publish/nats sends it.
func asMsg(m consumetest.Message) *natsgo.Msg {
	sent := natsgo.NewMsg("users.step")
	sent.Data = m.Body
	sent.Header["content-type"] = []string{m.ContentType}
	for name, value := range m.Attributes {
		sent.Header["ce-"+name] = []string{value}
	}
	return sent
}

// unacknowledged is how many messages of the stream the suite's consumer has not acknowledged.
func (b *broker) unacknowledged(ctx context.Context) (int, error) {
	stream, err := b.js.Stream(ctx, "USERS")
	if err != nil {
		return 0, err
	}
	c, err := b.js.Consumer(ctx, "USERS", consumetest.Group)
	if err == jetstream.ErrConsumerNotFound {
		return int(stream.CachedInfo().State.Msgs), nil
	}
	if err != nil {
		return 0, err
	}
	return int(c.CachedInfo().NumPending) + c.CachedInfo().NumAckPending, nil
}
