package amqp_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/amqp"
	"github.com/outboxgen/outboxgen/publish/internal/relaytest"
)

// TestRelay relays events of a log topic and of a queue topic while the server is killed, connections are cut or hang, and
// the queue is full. No event is lost, the order per key of a log is kept, and each effect happens once. It kills the server
// and so is not parallel. It takes a minute and so is left to `make test-brokers`.
func TestRelay(t *testing.T) {
	if os.Getenv(brokertest.RequireVariable) == "" {
		t.Skip("slow: run by make test-brokers")
	}
	t.Run("log", func(t *testing.T) { relaytest.Log(t, newRelay(t), 10_000) })
	t.Run("queue", func(t *testing.T) { relaytest.Queue(t, newRelay(t), 5_000) })
}

func newRelay(t *testing.T) relaytest.Broker {
	f := newFaulty(t)
	p := f.publisher(t, func(cfg *amqp.Config) { cfg.URL, cfg.Timeout = f.proxy.URL("guest"), 2*time.Second })
	kill := func() {
		if err := f.Restart(); err != nil {
			t.Errorf("restart: %v", err)
		}
	}
	briefly := func(start, end func()) func() {
		return func() {
			start()
			<-time.After(300 * time.Millisecond)
			end()
		}
	}
	return relaytest.Broker{
		Publisher: p, Destination: f.destination, Consume: f.consume(),
		Faults: []func(){
			briefly(func() { f.proxy.Cut(true) }, f.proxy.Up),
			kill,
			briefly(f.proxy.Hang, func() { f.proxy.Cut(false) }),
			briefly(func() { f.rebind(f.queue, f.full) }, func() { f.rebind(f.full, f.queue) }),
		},
	}
}

// consume reads the queue in order. It acknowledges a batch after it was applied.
func (f *faulty) consume() func(ctx context.Context, apply func([]relaytest.Message) error) error {
	return func(ctx context.Context, apply func([]relaytest.Message) error) error {
		conn, err := amqp091.Dial(f.URL("guest"))
		if err != nil {
			return wait(ctx)
		}
		defer func() { _ = conn.Close() }()
		ch, err := conn.Channel()
		if err != nil {
			return wait(ctx)
		}
		if err := ch.Qos(300, 0, false); err != nil {
			return wait(ctx)
		}
		deliveries, err := ch.ConsumeWithContext(ctx, f.queue, "", false, true, false, false, nil)
		if err != nil {
			return wait(ctx)
		}
		for {
			var got []relaytest.Message
			var last uint64
			timer := time.After(50 * time.Millisecond)
		collecting:
			for len(got) < 300 {
				select {
				case d, open := <-deliveries:
					if !open {
						return wait(ctx)
					}
					id, err := uuid.Parse(d.MessageId)
					if err != nil {
						return err
					}
					got, last = append(got, relaytest.Message{ID: id, Payload: d.Body}), d.DeliveryTag
				case <-timer:
					break collecting
				}
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if len(got) == 0 {
				continue
			}
			if err := apply(got); err != nil {
				return err
			}
			if err := ch.Ack(last, true); err != nil {
				return wait(ctx)
			}
		}
	}
}

// wait waits a moment for a server that is starting.
func wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
	return nil
}

// TestBlocked: a server that is low on memory takes no messages. The publisher says so immediately and sends nothing, and continues
// when the server does. It affects all connections and so is not parallel.
func TestBlocked(t *testing.T) {
	b := newBroker(t)
	p := b.publisher(t, func(cfg *amqp.Config) { cfg.Timeout = 2 * time.Second })
	require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{b.event("a", 0)}))
	set := func(watermark string) {
		_, err := b.Control("set_vm_memory_high_watermark", watermark)
		require.NoError(t, err)
	}
	set("0.000001")
	defer set("0.4")
	events := []publish.Outgoing{b.event("a", 1), b.event("a", 2)}
	blocked(t, p, events)
	began := time.Now()
	blocked(t, p, events)
	require.Less(t, time.Since(began), time.Second, "it does not wait for confirmations")
	set("0.4")
	settle(t, p, events)
}

// blocked publishes until the server has said that it takes no messages.
func blocked(t *testing.T, p *amqp.Publisher, events []publish.Outgoing) {
	t.Helper()
	var errs []error
	require.Eventually(t, func() bool {
		errs = p.Publish(t.Context(), events)
		return errs[0] != nil && isBlocked(errs[0])
	}, patience, 10*time.Millisecond)
	requireBroker(t, errs[0])
	requireBehind(t, errs[1])
}

// TestConsumeWhatWasPublished: a consumer reads a message with all facts of its event, whatever the encoder.
func TestConsumeWhatWasPublished(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	for name, encoder := range map[string]publish.Encoder{
		"binary": nil, "structured": publish.CloudEvents("/users", publish.Structured), "json": publish.JSON(),
	} {
		p := b.publisher(t, func(cfg *amqp.Config) { cfg.Encoder = encoder })
		o := full(b.event("user/17 ü", 1))
		require.Equal(t, []error{nil}, p.Publish(t.Context(), []publish.Outgoing{o}))
		all := b.received()
		d := all[len(all)-1]
		r, err := consume.Parse(consume.FromAMQP(d.Headers, d.ContentType, d.Body))
		require.NoError(t, err, name)
		require.Equal(t, o.ID, r.ID)
		require.Equal(t, "users.user_renamed", r.Type)
		require.Equal(t, o.PartitionKey, r.PartitionKey)
		require.Equal(t, o.TenantID, r.TenantID)
		require.Equal(t, o.CreatedAt, r.Time)
		require.Equal(t, consume.Entity(o.Entity), r.Entity)
		require.Equal(t, map[string]string{"traceparent": "00-a-b-01", "x-reason": "maßvoll"}, r.Headers)
		require.JSONEq(t, string(o.Payload), string(r.Payload))
	}
}
