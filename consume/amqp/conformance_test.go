package amqp_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/amqp"
	"github.com/outboxgen/outboxgen/consume/consumetest"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/brokertest"
)

// TestConformance: the receiver passes the suite of consumers.
func TestConformance(t *testing.T) {
	brokertest.NeedRabbitMQ(t)
	consumetest.Conformance(t, consumetest.Harness{
		Open: func(t testing.TB) consumetest.Broker {
			b := newBroker(t, classic)
			return consumetest.Broker{
				Address: b.URL("guest") + " " + b.queue,
				Send: func(_ context.Context, ms []consumetest.Message) error {
					sent := make([]amqp091.Publishing, len(ms))
					for i, m := range ms {
						sent[i] = asPublishing(m)
					}
					b.send(sent...)
					return nil
				},
			}
		},
		Run: func(ctx context.Context, address string, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
			url, queue, _ := strings.Cut(address, " ")
			return amqp.Run(ctx, pool, c, configOf(url, queue, func(r *amqp.Config) { r.Receive = cfg }))
		},
	})
}

// asPublishing is a message as publish/amqp sends it.
func asPublishing(m consumetest.Message) amqp091.Publishing {
	headers := amqp091.Table{}
	for name, value := range m.Attributes {
		headers["cloudEvents:"+name] = value
	}
	return amqp091.Publishing{
		MessageId: m.Attributes["id"], ContentType: m.ContentType, DeliveryMode: amqp091.Persistent, Headers: headers, Body: m.Body,
	}
}
