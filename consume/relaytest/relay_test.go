package relaytest

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/outboxgen/outboxgen/consume"
	consumeamqp "github.com/outboxgen/outboxgen/consume/amqp"
	consumekafka "github.com/outboxgen/outboxgen/consume/kafka"
	consumenats "github.com/outboxgen/outboxgen/consume/nats"
	"github.com/outboxgen/outboxgen/consume/receive"
	consumeredis "github.com/outboxgen/outboxgen/consume/redis"
	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/inbox"
	"github.com/outboxgen/outboxgen/internal/testing/brokertest"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/listener"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
	"github.com/outboxgen/outboxgen/publish/amqp"
	"github.com/outboxgen/outboxgen/publish/kafka"
	"github.com/outboxgen/outboxgen/publish/nats"
	"github.com/outboxgen/outboxgen/publish/redis"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(pgtest.Supervisor), goleak.IgnoreAnyFunction(brokertest.Supervisor))
}

// step is the payload: the n-th event of a key.
type step struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

var (
	enqueued = outbox.NewTopic[step](outbox.TopicSpec{
		Namespace: "users", Name: "step_taken", Version: 1, Log: true,
		Keys: func(v any) outbox.Keys {
			return outbox.Keys{Partition: eventkey.NewKey(eventkey.StringPart("key", v.(*step).Key))}
		},
	})
	consumed = consume.NewTopic[step](consume.TopicSpec{Namespace: "users", Name: "step_taken"})
)

const effectsTable = `CREATE TABLE effects (
	no bigint GENERATED ALWAYS AS IDENTITY, event uuid NOT NULL, key text NOT NULL, n integer NOT NULL
)`

// effects is a consumer that appends a row per event.
type effects struct{}

func (effects) ConsumeStepTaken(ctx context.Context, tx pgx.Tx, d consume.Delivery[step]) error {
	_, err := tx.Exec(ctx, "INSERT INTO effects (event, key, n) VALUES ($1, $2, $3)", d.ID, d.Payload.Key, d.Payload.N)
	return err
}

// closer is a publisher with connections.
type closer interface {
	publish.Publisher
	Close()
}

// broker is a broker with a destination, from which a receiver reads what a publisher sends.
type broker struct {
	destination string
	publisher   func(publish.Encoder) (closer, error)
	run         func(context.Context, *pgxpool.Pool, *consume.Consumer, receive.Config) error
}

var quiet = slog.New(slog.DiscardHandler)

var brokers = map[string]func(t *testing.T) broker{
	"Kafka": kafkaBroker, "NATS": natsBroker, "RabbitMQ": amqpBroker, "Redis": redisBroker,
}

func kafkaBroker(t *testing.T) broker {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "steps"))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return broker{
		destination: "steps",
		publisher: func(e publish.Encoder) (closer, error) {
			return kafka.New(kafka.Config{Brokers: c.ListenAddrs(), Encoder: e, Logger: quiet})
		},
		run: func(ctx context.Context, pool *pgxpool.Pool, c1 *consume.Consumer, cfg receive.Config) error {
			return consumekafka.Run(ctx, pool, c1, consumekafka.Config{
				Brokers: c.ListenAddrs(), Topics: []string{"steps"}, Receive: cfg,
			})
		},
	}
}

func natsBroker(t *testing.T) broker {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(pgtest.Patience))
	nc, err := natsgo.Connect(s.ClientURL())
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "USERS", Subjects: []string{"users.>"}})
	require.NoError(t, err)
	return broker{
		destination: "users.step",
		publisher: func(e publish.Encoder) (closer, error) {
			return nats.New(nats.Config{URL: s.ClientURL(), Encoder: e, Logger: quiet})
		},
		run: func(ctx context.Context, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
			return consumenats.Run(ctx, pool, c, consumenats.Config{URL: s.ClientURL(), Stream: "USERS", Receive: cfg})
		},
	}
}

func amqpBroker(t *testing.T) broker {
	brokertest.NeedRabbitMQ(t)
	s, err := brokertest.StartRabbitMQ()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	conn, err := amqp091.Dial(s.URL("guest"))
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	q, err := ch.QueueDeclare("q-"+uuid.NewString(), true, false, false, false, nil)
	require.NoError(t, err)
	return broker{
		destination: "/queues/" + q.Name,
		publisher: func(e publish.Encoder) (closer, error) {
			return amqp.New(amqp.Config{URL: s.URL("guest"), Encoder: e, Logger: quiet})
		},
		run: func(ctx context.Context, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
			return consumeamqp.Run(ctx, pool, c, consumeamqp.Config{URL: s.URL("guest"), Queue: q.Name, Receive: cfg})
		},
	}
}

func redisBroker(t *testing.T) broker {
	s := brokertest.StartRedis(t)
	return broker{
		destination: "steps",
		publisher: func(e publish.Encoder) (closer, error) {
			return redis.New(redis.Config{URL: "redis://" + s.Addr(), Encoder: e, CreateStreams: true})
		},
		run: func(ctx context.Context, pool *pgxpool.Pool, c *consume.Consumer, cfg receive.Config) error {
			return consumeredis.Run(ctx, pool, c, consumeredis.Config{
				URL: "redis://" + s.Addr(), Streams: []string{"steps"}, CreateStreams: true, Receive: cfg,
			})
		},
	}
}

// TestRelay: a listener publishes events, and another service consumes them. Each is applied once, in the order of its
// key, with the id that it had, whatever the publisher's encoder is.
func TestRelay(t *testing.T) {
	t.Parallel()
	for name, start := range brokers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const keys, each = 5, 20
			b := start(t)
			producer, pool := pgtest.Database(t), pgtest.Database(t)
			pgtest.Execute(t, pool, effectsTable)
			ib, err := inbox.New(inbox.Config{Group: "projection"})
			require.NoError(t, err)
			consumer, err := consume.New(ib, consume.Handle(consumed, effects{}, effects.ConsumeStepTaken))
			require.NoError(t, err)
			background(t, func(ctx context.Context) error {
				return b.run(ctx, pool, consumer, receive.Config{PollInterval: 50 * time.Millisecond, Logger: quiet})
			})
			for i, encoder := range []publish.Encoder{nil, publish.CloudEvents("/users", publish.Structured), publish.JSON()} {
				publisher, err := b.publisher(encoder)
				require.NoError(t, err)
				relay, err := listener.New(producer, listener.Spec{Name: "relay"}, listener.Config{
					PollInterval: 50 * time.Millisecond, Logger: quiet, Publishers: map[string]publish.Publisher{"broker": publisher},
				}, listener.Publish(enqueued, publish.Publication{Broker: "broker", Destination: b.destination}))
				require.NoError(t, err)
				stop := background(t, relay.Run)
				for n := range each {
					require.NoError(t, pgx.BeginFunc(t.Context(), producer, func(tx pgx.Tx) error {
						steps := make([]step, keys)
						for k := range steps {
							steps[k] = step{fmt.Sprintf("key %d", k), i*each + n + 1}
						}
						_, err := enqueued.EnqueueMany(t.Context(), tx, steps)
						return err
					}))
				}
				pgtest.Settles(t, pool, keys*each*(i+1), "SELECT count(*) FROM effects")
				stop()
				publisher.Close()
			}
			require.Zero(t, pgtest.Count(t, pool, `SELECT count(*) FROM (
				SELECT n, row_number() OVER (PARTITION BY key ORDER BY no) AS want FROM effects
			) AS e WHERE n <> want`), "out of the order of their key")
			require.Equal(t, pgtest.Value[[]uuid.UUID](t, producer, "SELECT array_agg(id ORDER BY id) FROM outbox.log"),
				pgtest.Value[[]uuid.UUID](t, pool, "SELECT array_agg(event ORDER BY event) FROM effects"))
			require.Zero(t, pgtest.Count(t, pool, "SELECT count(*) FROM outbox.inbox_messages"))
		})
	}
}

// background runs f until stop is called or the test ends.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		pgtest.Check(t, f(ctx))
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}
