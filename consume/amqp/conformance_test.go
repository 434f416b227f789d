package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/amqp"
	"github.com/outboxgen/outboxgen/consume/consumetest"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
)

// TestConformance: the receiver passes the suite of consumers, with both types of queues.
func TestConformance(t *testing.T) {
	t.Parallel()
	brokertest.NeedRabbitMQ(t)
	for name, kind := range map[string]amqp091.Table{"classic": classic, "quorum": quorum} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			consumetest.Conformance(t, harness(kind))
		})
	}
}

func harness(kind amqp091.Table) consumetest.Harness {
	return consumetest.Harness{
		Open: func(t testing.TB) consumetest.Broker {
			b := newBroker(t, kind)
			proxy := brokertest.NewProxy(t, b.Addr())
			return consumetest.Broker{
				Address: proxy.URL("guest") + " " + b.queue,
				Send: func(_ context.Context, ms []consumetest.Message) error {
					sent := make([]amqp091.Publishing, len(ms))
					for i, m := range ms {
						sent[i] = asPublishing(m)
					}
					b.send(sent...)
					return nil
				},
				Pending:   b.unacknowledged,
				Rebalance: func(context.Context) error { proxy.Cut(false); return nil },
			}
		},
		Run: func(ctx context.Context, address string, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
			url, queue, _ := strings.Cut(address, " ")
			return amqp.Run(ctx, pool, c, amqp.Config{URL: url, Queue: queue, Receive: cfg})
		},
	}
}

// asPublishing is a message as publish/amqp sends it.
func asPublishing(m consumetest.Message) amqp091.Publishing {
	headers := make(amqp091.Table)
	for name, value := range m.Attributes {
		headers["cloudEvents:"+name] = value
	}
	return amqp091.Publishing{
		MessageId: m.Attributes["id"], ContentType: m.ContentType, DeliveryMode: amqp091.Persistent, Headers: headers, Body: m.Body,
	}
}

// unacknowledged is how many messages the queue has, including those that a consumer holds.
func (b *broker) unacknowledged(context.Context) (int, error) {
	out, err := b.Control("eval", fmt.Sprintf(
		`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)),
		case amqqueue:get_type(Q) of
			rabbit_quorum_queue -> {ok, {_, N}, _} = ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1), N;
			_ -> proplists:get_value(messages, rabbit_amqqueue:info(Q, [messages]))
		end.`, b.queue))
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		return 0, errors.New(out)
	}
	return n, nil
}
