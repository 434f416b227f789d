package amqp_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/amqp"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(pgtest.Supervisor), goleak.IgnoreAnyFunction(brokertest.Supervisor), goleak.Cleanup(func(code int) {
		if shared.server != nil {
			if err := shared.server.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = max(code, 1)
			}
		}
		os.Exit(code)
	}))
}

const patience = 2 * time.Minute

// shared is the server of all tests: it takes seconds to start one. Tests that disturb it are not parallel, and so run before
// those that are.
var shared struct {
	once   sync.Once
	server *brokertest.RabbitMQ
	err    error
}

func sharedServer(t testing.TB) *brokertest.RabbitMQ {
	t.Helper()
	brokertest.NeedRabbitMQ(t)
	shared.once.Do(func() { shared.server, shared.err = brokertest.StartRabbitMQ() })
	require.NoError(t, shared.err)
	return shared.server
}

// broker has an exchange and a durable queue of one test on the shared server.
type broker struct {
	t testing.TB
	*brokertest.RabbitMQ
	exchange, queue, destination string

	mu      sync.Mutex
	conn    *amqp091.Connection // of the test
	channel *amqp091.Channel
	taken   []amqp091.Delivery
}

func newBroker(t testing.TB) *broker {
	t.Helper()
	id := uuid.NewString()
	b := &broker{t: t, RabbitMQ: sharedServer(t), exchange: "x-" + id, queue: "q-" + id}
	b.destination = "/exchanges/" + b.exchange + "/user.renamed"
	t.Cleanup(b.disconnect)
	b.control(func(ch *amqp091.Channel) error {
		if err := ch.ExchangeDeclare(b.exchange, "topic", true, false, false, false, nil); err != nil {
			return err
		}
		if _, err := ch.QueueDeclare(b.queue, true, false, false, false, nil); err != nil {
			return err
		}
		return ch.QueueBind(b.queue, "user.#", b.exchange, false, nil)
	})
	t.Cleanup(func() {
		b.control(func(ch *amqp091.Channel) error {
			if _, err := ch.QueueDelete(b.queue, false, false, false); err != nil {
				return err
			}
			return ch.ExchangeDelete(b.exchange, false, false)
		})
	})
	return b
}

func (b *broker) disconnect() {
	if b.conn != nil {
		_ = b.conn.Close()
	}
	b.conn = nil
}

// control calls f with a channel, again on a new connection if it fails.
func (b *broker) control(f func(*amqp091.Channel) error) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(50 * time.Millisecond) {
		if b.conn == nil || b.conn.IsClosed() || b.channel.IsClosed() {
			b.disconnect()
			if b.conn, err = amqp091.Dial(b.URL("guest")); err != nil {
				continue
			}
			if b.channel, err = b.conn.Channel(); err != nil {
				continue
			}
		}
		if err = f(b.channel); err == nil {
			return
		}
	}
	require.NoError(b.t, err)
}

// received takes the messages out of the queue, and returns all that were there so far.
func (b *broker) received() []amqp091.Delivery {
	b.t.Helper()
	b.control(func(ch *amqp091.Channel) error {
		for {
			d, there, err := ch.Get(b.queue, true)
			if err != nil || !there {
				return err
			}
			b.taken = append(b.taken, d)
		}
	})
	return b.taken
}

func (b *broker) ids() []string {
	b.t.Helper()
	var ids []string
	for _, d := range b.received() {
		ids = append(ids, d.MessageId)
	}
	return ids
}

func (b *broker) publisher(t testing.TB, change ...func(*amqp.Config)) *amqp.Publisher {
	t.Helper()
	cfg := amqp.Config{URL: b.URL("guest"), Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&cfg)
	}
	p, err := amqp.New(cfg)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// event returns an event with a key.
func (b *broker) event(key string, n int) publish.Outgoing {
	o := event(key, n)
	o.Destination = b.destination
	return o
}

func event(key string, n int) publish.Outgoing {
	return publish.Outgoing{
		Event: outbox.Event{
			ID: uuid.Must(uuid.NewV7()), Namespace: "users", Topic: "user_renamed", Version: 1, PartitionKey: key,
			Attempt: 1, MaxAttempts: 5, CreatedAt: time.Date(2026, 11, 21, 13, 14, 15, 0, time.UTC),
		},
		Payload: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)), Destination: "/exchanges/users/user.renamed", Key: key,
	}
}

// large returns an event with a payload of so many bytes.
func large(o publish.Outgoing, bytes int) publish.Outgoing {
	o.Payload = json.RawMessage(`"` + strings.Repeat("x", bytes) + `"`)
	return o
}

// settle publishes until all events are stored. A connection takes a moment to come back.
func settle(t testing.TB, p *amqp.Publisher, events []publish.Outgoing) {
	t.Helper()
	require.Eventually(t, func() bool {
		var pending []publish.Outgoing
		for i, err := range p.Publish(t.Context(), events) {
			if err != nil {
				pending = append(pending, events[i])
			}
		}
		events = pending
		return len(events) == 0
	}, patience, 20*time.Millisecond)
}
